//! Compiled kernels and the manifest that vouches for them.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// What is known of all compiled modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The compiler and its version.
    pub compiler: String,
    /// SHA-256 over the sources.
    pub source_sha256: String,
    /// One entry for each module.
    pub modules: Vec<ModuleInfo>,
}

/// What is known of one module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// File name.
    pub file: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// The one entry point.
    pub entry_point: String,
    /// Invocations of a workgroup.
    pub local_size: [u32; 3],
    /// Highest binding plus one.
    pub bindings: u32,
    /// Ids of the specialisation constants.
    pub spec_constants: Vec<u32>,
    /// Capabilities, by SPIR-V's numbers.
    pub capabilities: Vec<u32>,
    /// Extensions.
    pub extensions: Vec<String>,
}

/// A module that agrees with its manifest.
pub struct Module {
    pub(crate) words: Vec<u32>,
    pub(crate) entry_point: std::ffi::CString,
    info: ModuleInfo,
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl Manifest {
    /// Reads the manifest's text.
    ///
    /// # Errors
    /// [`Error::Module`] when it is not one.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| Error::Module { file: "manifest.json".into(), detail: e.to_string() })
    }
}

impl Module {
    /// The module in `bytes`, checked against the manifest's entry for `file`.
    ///
    /// # Errors
    /// [`Error::Module`] when the manifest has no such file or tells otherwise.
    pub fn new(manifest: &Manifest, file: &str, bytes: &[u8]) -> Result<Self> {
        let wrong = |detail: String| Error::Module { file: file.to_owned(), detail };
        let listed =
            manifest.modules.iter().find(|m| m.file == file).ok_or_else(|| wrong("not in the manifest".into()))?;
        let info = describe(file, bytes)?;
        if info != *listed {
            return Err(wrong(format!("the manifest says {listed:?}, the file {info:?}")));
        }
        if info.local_size != [sparsimd_gpu_abi::WORKGROUP, 1, 1] {
            return Err(wrong(format!("workgroups of {:?}, not {}", info.local_size, sparsimd_gpu_abi::WORKGROUP)));
        }
        let entry_point = std::ffi::CString::new(info.entry_point.as_str()).map_err(|e| wrong(e.to_string()))?;
        Ok(Self { words: words(bytes), entry_point, info })
    }

    /// What the module contains.
    pub fn info(&self) -> &ModuleInfo {
        &self.info
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// What a module contains, read from its instructions (SPIR-V specification, section 3).
///
/// # Errors
/// [`Error::Module`] when the bytes are not a module with one compute entry point, or a variable of it holds pointers.
pub fn describe(file: &str, bytes: &[u8]) -> Result<ModuleInfo> {
    const MAGIC: u32 = 0x0723_0203;
    const HEADER: usize = 5;
    const OP_EXTENSION: u32 = 10;
    const OP_ENTRY_POINT: u32 = 15;
    const OP_EXECUTION_MODE: u32 = 16;
    const OP_CAPABILITY: u32 = 17;
    const OP_TYPE_ARRAY: u32 = 28;
    const OP_TYPE_STRUCT: u32 = 30;
    const OP_TYPE_POINTER: u32 = 32;
    const OP_VARIABLE: u32 = 59;
    const OP_DECORATE: u32 = 71;
    const LOCAL_SIZE: u32 = 17;
    const SPEC_ID: u32 = 1;
    const BINDING: u32 = 33;
    const GL_COMPUTE: u32 = 5;
    const FUNCTION: u32 = 7;

    let wrong = |detail: &str| Error::Module { file: file.to_owned(), detail: detail.to_owned() };
    let code = words(bytes);
    if !bytes.len().is_multiple_of(4) || code.len() < HEADER || code[0] != MAGIC {
        return Err(wrong("not a SPIR-V module"));
    }
    let mut info = ModuleInfo {
        file: file.to_owned(),
        sha256: sha256(bytes),
        entry_point: String::new(),
        local_size: [0; 3],
        bindings: 0,
        spec_constants: Vec::new(),
        capabilities: Vec::new(),
        extensions: Vec::new(),
    };
    let text = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take_while(|&b| b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    // Types that hold pointers into memory, and pointers to such types.
    let (mut pointers, mut to_pointers) = (Vec::new(), Vec::new());
    let mut rest = &code[HEADER..];
    while let Some(&first) = rest.first() {
        let length = (first >> 16) as usize;
        if length == 0 || length > rest.len() {
            return Err(wrong("an instruction runs past the end"));
        }
        let (op, tail) = rest.split_at(length);
        match (first & 0xffff, &op[1..]) {
            (OP_CAPABILITY, [c]) => info.capabilities.push(*c),
            (OP_EXTENSION, name) => info.extensions.push(text(name)),
            (OP_ENTRY_POINT, [model, _, name @ ..]) => {
                if *model != GL_COMPUTE || !info.entry_point.is_empty() {
                    return Err(wrong("not one compute entry point"));
                }
                info.entry_point = text(name);
            }
            (OP_EXECUTION_MODE, [_, LOCAL_SIZE, x, y, z]) => info.local_size = [*x, *y, *z],
            (OP_DECORATE, [_, SPEC_ID, id]) => info.spec_constants.push(*id),
            (OP_DECORATE, [_, BINDING, b]) => info.bindings = info.bindings.max(b + 1),
            (OP_TYPE_POINTER, [id, class, pointee]) => match *class {
                FUNCTION if pointers.contains(pointee) => to_pointers.push(*id),
                FUNCTION => {}
                _ => pointers.push(*id),
            },
            (OP_TYPE_ARRAY, [id, element, _]) if pointers.contains(element) => pointers.push(*id),
            (OP_TYPE_STRUCT, [id, members @ ..]) if members.iter().any(|m| pointers.contains(m)) => pointers.push(*id),
            (OP_VARIABLE, [of, _, FUNCTION, ..]) if to_pointers.contains(of) => {
                return Err(wrong("a variable holds pointers, at which NVIDIA's compiler ends the program"));
            }
            _ => {}
        }
        rest = tail;
    }
    if info.entry_point.is_empty() {
        return Err(wrong("no entry point"));
    }
    info.spec_constants.sort_unstable();
    info.capabilities.sort_unstable();
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module of these instructions, each an opcode with its operands.
    fn module(instructions: &[(u32, &[u32])]) -> Vec<u8> {
        let mut words = vec![0x0723_0203, 0x0001_0500, 0, 99, 0];
        for &(op, operands) in instructions {
            words.push((operands.len() as u32 + 1) << 16 | op);
            words.extend(operands);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn variables_that_hold_pointers_are_refused() {
        // A function called "a"; number 1 a word, 2 a pointer to it in a buffer, 3 a pair of both, 4 and 5 pointers to 3 and 1.
        let (entry, word) = ((15, &[5, 9, 0x61][..]), (21, &[1, 32, 0][..]));
        let types = [entry, word, (32, &[2, 12, 1]), (30, &[3, 1, 2]), (32, &[4, 7, 3]), (32, &[5, 7, 1])];
        let with = |of: u32| describe("m", &module(&[&types[..], &[(59, &[of, 6, 7])]].concat()));
        assert!(with(4).is_err_and(|e| e.to_string().contains("holds pointers")));
        assert_eq!(with(5).unwrap().entry_point, "a");
    }
}
