//! The host layer on whatever Vulkan device there is, with the validation layer on. Without a device the tests are skipped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sparsimd_gpu_host::{Buffer, Device, DeviceOptions, Error, Instance, Manifest, Module, Pipeline, Stream};

#[path = "../../../tests/common/skip.rs"]
mod skip;
#[path = "../../../tests/common/turn.rs"]
mod turn;

use skip::{Missing, skip};

fn open(options: DeviceOptions) -> Option<Device> {
    turn::wait();
    let opened = Instance::new(true).and_then(|instance| Device::new(&instance, options));
    match opened {
        Ok(device) => Some(device),
        Err(e @ (Error::NoVulkan(_) | Error::NoDevice(_) | Error::Feature { .. })) => {
            skip(Missing::Device, format_args!("no device ({e})"));
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn uncached() -> DeviceOptions {
    DeviceOptions { cache_dir: None, ..DeviceOptions::default() }
}

fn quiet(device: &Device) {
    assert_eq!(device.instance().messages(), Vec::<String>::new());
}

fn spv() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../spv")
}

fn manifest() -> Manifest {
    Manifest::parse(&std::fs::read_to_string(spv().join("manifest.json")).unwrap()).unwrap()
}

fn module(file: &str) -> Module {
    Module::new(&manifest(), file, &std::fs::read(spv().join(file)).unwrap()).unwrap()
}

/// The gather kernel, which takes the number of elements.
fn gather(device: &Device) -> Pipeline {
    Pipeline::new(device, &module("single.gather.spv"), size_of::<u32>(), &[]).unwrap()
}

/// out = x reversed, on the device.
fn reverse(device: &Device, stream: &mut Stream, kernel: &Pipeline, x: &[f32]) -> Result<Vec<f32>, Error> {
    let n = x.len() as u32;
    let order: Vec<u32> = (0..n).rev().collect();
    let mut on_device = (
        Buffer::new(device, x.len(), "order")?,
        Buffer::new(device, x.len(), "x")?,
        Buffer::<f32>::new(device, x.len(), "out")?,
    );
    stream.upload(&mut on_device.0, 0, &order)?;
    stream.upload(&mut on_device.1, 0, x)?;
    let bindings = [on_device.0.bind(), on_device.1.bind(), on_device.2.bind_mut()];
    stream.record(|r| {
        // SAFETY: the order is a permutation of the elements of `x` and of `out`.
        unsafe { r.launch(kernel, &bindings, &n, [n.div_ceil(sparsimd_gpu_abi::WORKGROUP), 1, 1]) }
    })?;
    let mut out = vec![0.0; x.len()];
    stream.download(&on_device.2, 0, &mut out)?;
    Ok(out)
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn copies_arrive_directly_and_through_staging_memory() {
    // More than one staging buffer of 32 MiB, and not a multiple of it.
    const LEN: usize = (9 << 20) + 77;
    for always_stage in [false, true] {
        let Some(device) = open(DeviceOptions { always_stage, ..uncached() }) else { return };
        let mut stream = Stream::new(&device).unwrap();
        let data = numbers(LEN);
        let mut buffer = Buffer::new(&device, LEN, "data").unwrap();
        stream.upload(&mut buffer, 0, &data).unwrap();
        stream.upload(&mut buffer, 5, &[-1.0, -2.0]).unwrap();
        let mut got = vec![0.0; LEN - 3];
        stream.download(&buffer, 3, &mut got).unwrap();
        assert_eq!(got[2..4], [-1.0, -2.0]);
        assert!(got.iter().zip(&data[3..]).enumerate().all(|(i, (a, b))| a == b || (2..4).contains(&i)));
        assert_eq!(stream.take_copied(), [(LEN as u64 + 2) * 4, (LEN as u64 - 3) * 4]);
        assert_eq!(stream.take_copied(), [0, 0]);
        let past = stream.upload(&mut buffer, LEN - 1, &[0.0, 0.0]);
        assert!(matches!(past, Err(Error::Limit { .. })));
        let kernel = gather(&device);
        let reversed = reverse(&device, &mut stream, &kernel, &data[..1000]).unwrap();
        assert!(reversed.iter().rev().eq(&data[..1000]));
        quiet(&device);
    }
}

#[test]
fn a_launch_outside_the_limits_is_refused() {
    let Some(device) = open(uncached()) else { return };
    let kernel = gather(&device);
    let mut stream = Stream::new(&device).unwrap();
    let (x, mut out) = (Buffer::<u32>::new(&device, 8, "x").unwrap(), Buffer::<u32>::new(&device, 8, "out").unwrap());
    let bindings = [x.bind(), x.bind(), out.bind_mut()];
    let too_many = device.info().max_groups[0] as u64 + 1;
    let mut launch = |bindings: &[_], groups| {
        // SAFETY: nothing is launched: each of these is refused.
        stream.record(|r| unsafe { r.launch(&kernel, bindings, &8u32, groups) }).unwrap_err().to_string()
    };
    assert!(launch(&bindings[..2], [1, 1, 1]).contains("2 bindings for a kernel with 3"));
    if let Ok(x) = u32::try_from(too_many) {
        assert!(launch(&bindings, [x, 1, 1]).contains("at most"));
    }
}

#[test]
fn a_device_that_does_not_answer_in_time_is_given_up() {
    let Some(device) = open(DeviceOptions { time_limit: Duration::ZERO, ..uncached() }) else { return };
    let kernel = gather(&device);
    let mut stream = Stream::new(&device).unwrap();
    let name = device.info().name.clone();
    // A thread that is held up between submitting and waiting may find the work done; not every time.
    let data = numbers(4 << 20);
    let error = (0..50).find_map(|_| reverse(&device, &mut stream, &kernel, &data).err()).unwrap();
    assert_eq!(error.to_string(), format!("{name}: no answer within 0 s"));
    // Nothing more is sent to it, and another one can be opened.
    assert!(matches!(Buffer::<u32>::new(&device, 8, "x"), Err(Error::Lost { .. })));
    assert!(matches!(reverse(&device, &mut stream, &kernel, &numbers(8)), Err(Error::Lost { .. })));
    let fresh = open(uncached()).unwrap();
    let (mut stream, kernel) = (Stream::new(&fresh).unwrap(), gather(&fresh));
    assert_eq!(reverse(&fresh, &mut stream, &kernel, &[1.0, 2.0]).unwrap(), [2.0, 1.0]);
}

#[test]
fn a_lost_device_is_named_and_left_alone() {
    let Some(device) = open(DeviceOptions { lose_at: Some(1), ..uncached() }) else { return };
    let kernel = gather(&device);
    let mut stream = Stream::new(&device).unwrap();
    stream.record(|_| Ok::<_, Error>(())).unwrap();
    let error = stream.record(|_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: the device was lost", device.info().name));
    assert!(matches!(reverse(&device, &mut stream, &kernel, &[1.0]), Err(Error::Lost { .. })));
    assert!(matches!(Pipeline::new(&device, &module("single.gather.spv"), 4, &[]), Err(Error::Lost { .. })));
}

#[test]
fn memory_beyond_the_limit_is_refused_with_both_numbers() {
    let Some(device) = open(DeviceOptions { memory_limit: Some(1 << 20), ..uncached() }) else { return };
    let first = Buffer::<u32>::new(&device, 100_000, "x").unwrap();
    let left = device.memory_left();
    assert!(left < (1 << 20) - 400_000);
    match Buffer::<u32>::new(&device, 200_000, "y").map(|_| ()) {
        Err(Error::OutOfMemory { device: name, bytes, left: told }) => {
            assert_eq!((name.as_str(), told), (device.info().name.as_str(), left));
            assert!(bytes >= 800_000);
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    assert!(Buffer::<u32>::new(&device, 200_000, "y").is_ok());
    quiet(&device);
}

#[test]
fn pipelines_are_kept_on_disk_and_damage_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        || DeviceOptions { cache_dir: Some(dir.path().join("new").join("folder")), ..DeviceOptions::default() };
    let run = || {
        let device = open(options())?;
        let (mut stream, kernel) = (Stream::new(&device).unwrap(), gather(&device));
        assert_eq!(reverse(&device, &mut stream, &kernel, &[1.0, 2.0]).unwrap(), [2.0, 1.0]);
        quiet(&device);
        Some(())
    };
    if run().is_none() {
        return;
    }
    let files =
        || -> Vec<_> { std::fs::read_dir(options().cache_dir.unwrap()).unwrap().map(|f| f.unwrap().path()).collect() };
    let [file] = files().try_into().unwrap();
    let whole = std::fs::read(&file).unwrap();
    assert!(whole.len() > 32);
    // With what the last run left, cut short, and with a bit that fell over; each run leaves one whole file.
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for stored in [&whole[..], &whole[..whole.len() - 1], &whole[..7], &flipped, &[]] {
        std::fs::write(&file, stored).unwrap();
        run().unwrap();
        assert_eq!(files(), std::slice::from_ref(&file));
        assert!(std::fs::read(&file).unwrap().len() > 32);
    }
}

#[test]
fn modules_agree_with_the_manifest_or_are_refused() {
    let manifest = manifest();
    assert!(!manifest.modules.is_empty());
    for listed in &manifest.modules {
        let bytes = std::fs::read(spv().join(&listed.file)).unwrap();
        let module = Module::new(&manifest, &listed.file, &bytes).unwrap();
        assert!(listed.file.contains(module.info().entry_point.rsplit("::").next().unwrap()));
        let refused = |bytes: &[u8]| match Module::new(&manifest, &listed.file, bytes).map(|_| ()) {
            Err(Error::Module { file, .. }) => assert_eq!(file, listed.file),
            other => panic!("{other:?}"),
        };
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        refused(&changed);
        refused(&bytes[..bytes.len() - 4]);
        refused(&bytes[..bytes.len() - 2]);
        refused(b"");
    }
    let first = &manifest.modules[0];
    let bytes = std::fs::read(spv().join(&first.file)).unwrap();
    let absent = Module::new(&manifest, "absent.spv", &bytes).map(|_| ()).unwrap_err();
    assert_eq!(absent.to_string(), "absent.spv: not in the manifest");
    // A workgroup that is not the host's, vouched for by its manifest.
    let mut other = manifest.clone();
    other.modules[0].local_size = [64, 1, 1];
    assert!(matches!(Module::new(&other, &first.file, &bytes), Err(Error::Module { .. })));
    assert!(matches!(Manifest::parse("{}"), Err(Error::Module { .. })));
}
