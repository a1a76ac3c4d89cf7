//! `sparsimd ttm --passes MIB`: TTM of a tensor that stays in its file; the product is written as it is made.

use sparsimd::formats::SemiCoo;
use sparsimd::generate::uniform_dense;
use sparsimd::io::{TnsbStream, write_tns_blocks};
use sparsimd::{CooTensor, Error, Mat, MatRef, Result, Scalar, reference};

use super::Verdict;
use super::device::DeviceName;
use super::factors::Folders;
use super::tensor::{Algorithm, Common, TensorFormat};
use super::tensor_ops::Sweep;
use super::timing::{StoredDtype, Times, timed};

/// Runs, verifies and times it in the modes asked for, in passes that take so many MiB.
pub fn run(common: &Common, folders: &Folders, mib: usize) -> Result<Verdict> {
    match common.dtype {
        StoredDtype::F32 => product::<f32>(common, folders, mib),
        StoredDtype::F64 => product::<f64>(common, folders, mib),
        StoredDtype::Bf16 | StoredDtype::F16 => Err(common.no_dtype("ttm in passes")),
    }
}

fn product<T: Scalar>(common: &Common, folders: &Folders, mib: usize) -> Result<Verdict> {
    let chosen = common.format != TensorFormat::Auto || common.alg != Algorithm::Auto;
    if chosen || common.place.device != DeviceName::Cpu {
        let detail = "the tensor is used as it is in its file, on the processor: not with --format, --alg or --device";
        return Err(Error::Argument { name: "passes", detail: detail.to_owned() });
    }
    let (cpu, numa) = common.executor.cpu()?;
    let path = common.source.file("passes")?;
    let (x, prepare_s) = timed(|| TnsbStream::open(path))?;
    let (modes, cols) = (common.modes(x.dims().len())?, common.rank);
    // Verification has the whole tensor in memory, and the product.
    let whole: Option<CooTensor<T>> = if common.verify { Some(cpu.install(|| common.source.load())?) } else { None };
    let mut sweep = Sweep::new(prepare_s, x.nnz() * x.dims().len() * size_of::<u32>());
    for &mode in &modes {
        let (dim, seed) = (x.dims()[mode], common.source.seed ^ mode as u64);
        let u: Mat<T> = folders.operand(mode, dim, cols, || uniform_dense(dim, cols, seed))?;
        let mut dims = x.dims().to_vec();
        dims[mode] = cols;
        let mut fibers = 0;
        let (mut places, mut rows) = (vec![Vec::new(); dims.len() - 1], Vec::new());
        let times = Times::cold(common.repeat, || {
            (fibers, places, rows) = (0, vec![Vec::new(); dims.len() - 1], Vec::new());
            let mut pass = |write: &mut dyn FnMut(&SemiCoo<T>) -> Result<()>| {
                cpu.ttm_streamed(&x, mode, u.as_ref(), mib.saturating_mul(1 << 20), |piece| {
                    fibers += piece.num_blocks();
                    if common.verify {
                        places.iter_mut().zip(piece.all_coords()).for_each(|(all, own)| all.extend_from_slice(own));
                        piece.values().iter_rows().for_each(|row| rows.extend_from_slice(row));
                    }
                    write(&piece)
                })
            };
            match folders.sparse(mode) {
                Some(out) => write_tns_blocks(&out, &dims, pass),
                None => pass(&mut |_| Ok(())),
            }
        })?;
        sweep.add(times, "coo", "passes");
        sweep.count_ttm::<T>(x.nnz(), dim, fibers, cols);
        if let Some(whole) = &whole {
            let expected = cpu.install(|| reference::ttm(whole, mode, u.as_ref(), &places))?;
            sweep.check(expected.deviation(MatRef::new(&rows, fibers, cols, cols)?)?.error);
        }
    }
    sweep.numa = Some(numa);
    sweep.report::<T>("ttm", common, &cpu, (x.dims(), x.nnz()), Some(cols), modes)
}
