//! include/sparsimd.h is what cbindgen makes of src/capi. With SPARSIMD_BLESS set, it is written anew.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    // Which names the others.
    let builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/capi/mod.rs"));
    let mut made = Vec::new();
    builder.generate().expect("src/capi as cbindgen reads it").write(&mut made);
    let made = String::from_utf8(made).expect("a header in UTF-8");
    let path = root.join("include/sparsimd.h");
    if std::env::var_os("SPARSIMD_BLESS").is_some() {
        std::fs::write(&path, &made).expect("include/sparsimd.h can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let line = made.lines().zip(kept.lines()).position(|(a, b)| a != b);
    assert!(made == kept, "include/sparsimd.h differs from src/capi at line {line:?}; run with SPARSIMD_BLESS=1");
}
