//! The tensor operations on a Vulkan device, or shared with it, as contenders beside the processor's own: whole calls, with all operands of
//! a device in its memory.

use sparsimd::formats::Fibers;
use sparsimd::gpu::{GpuFibers, GpuMat, GpuValues};
use sparsimd::hetero::{Hetero, HeteroFibers, HeteroTensor, Split};
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat};
use sparsimd::reference::{self, Deviation};
use sparsimd::{CooTensor, Cpu, Error, Mat, MatRef, Result};

use super::race::Contender;
use super::results::Case;
use super::tensors::way;
use crate::device::{DeviceName, Devices, Place};
use crate::timing::timed;

/// The device, alone or beside the processor.
pub struct TensorTarget {
    devices: Devices,
    /// `gpu`, or `hetero:` and how both share.
    label: String,
}

/// A mode, its fibers, and their coordinates in the other modes.
type OfMode<'a> = (usize, Fibers<'a, f32>, Vec<Vec<u32>>);

/// What products with a matrix or a vector are made of, in every mode: fibers, and results in their memory.
enum Product {
    Ttm(Vec<(GpuFibers<f32>, GpuMat<f32>, GpuMat<f32>)>),
    Ttv(Vec<(GpuFibers<f32>, GpuValues<f32>, GpuValues<f32>)>),
    Shared(Vec<(HeteroFibers<f32>, Mat<f32>)>),
}

/// The larger one.
pub fn worse(a: Deviation, b: Deviation) -> Deviation {
    if b.error > a.error { b } else { a }
}

/// Nothing is wrong.
pub const NO_DEVIATION: Deviation = Deviation { error: 0.0, row: 0, col: 0 };

impl TensorTarget {
    /// What `name` says; `None` for the processor.
    ///
    /// # Errors
    /// As [`Devices::open`].
    pub fn open(name: &DeviceName, cpu: &Cpu) -> Result<Option<Self>> {
        let label = match name {
            DeviceName::Hetero(split) => format!("hetero:{split}"),
            _ => "gpu".to_owned(),
        };
        let place = Place { device: name.clone(), device_memory: None };
        Ok(Devices::open(&place, cpu)?.map(|devices| Self { devices, label }))
    }

    /// What a target that shares is compared with: the device alone, and the other kind of share, half and half or adaptive; nothing for
    /// a device alone.
    ///
    /// # Errors
    /// As [`Hetero::new`].
    pub fn rivals(&self) -> Result<Vec<Self>> {
        let Devices::Both(both) = &self.devices else { return Ok(Vec::new()) };
        let (split, name) = match both.split() {
            Split::Adaptive => (Split::Static(0.5), "0.5"),
            Split::Static(_) => (Split::Adaptive, "adaptive"),
        };
        let other = Hetero::new(both.cpu().clone(), both.gpu().clone(), split)?;
        Ok(vec![
            Self { devices: Devices::One(both.gpu().clone()), label: "gpu".to_owned() },
            Self { devices: Devices::Both(Box::new(other)), label: format!("hetero:{name}") },
        ])
    }

    /// The device in words, and what its figures are where it is none.
    pub fn name(&self) -> String {
        let info = self.devices.gpu().info();
        let both = if matches!(self.devices, Devices::Both(_)) { "the processor and " } else { "" };
        let none = if info.kind.to_string() == "cpu" {
            "; a driver that runs on the processor: its figures say nothing of devices"
        } else {
            ""
        };
        format!("{both}{} ({}, Vulkan {}.{}), whole calls{none}", info.name, info.driver, info.api.0, info.api.1)
    }

    /// The name of a contender in the format `format`.
    pub fn label(&self, format: &str) -> String {
        format!("{format}, {}", self.label)
    }

    /// Whether the device of `both`, which has run, took its share; where the processor stood in for it, the notes say why.
    fn shared(&self, both: &Hetero, case: &mut Case, format: &str) -> bool {
        let failures = both.take_failures();
        case.notes.extend(failures.iter().map(|why| format!("{}: {why}", self.label(format))));
        failures.is_empty()
    }

    /// TEW (y = x + z) with `z`, or TS (y = 1.5 x), on values, verified: into `list`, or into the notes why not.
    pub fn elementwise<'a>(
        &'a self,
        case: &mut Case,
        list: &mut Vec<Contender<'a>>,
        format: &str,
        x: &'a [f32],
        z: Option<&'a [f32]>,
    ) -> Result<()> {
        let want = |p: usize| z.map_or(x[p] * 1.5, |z| x[p] + z[p]);
        let deviation = |y: &[f32]| {
            let wrong = (0..x.len()).find(|&p| y[p] != want(p));
            Deviation { error: wrong.map_or(0.0, |_| f64::INFINITY), row: wrong.unwrap_or(0), col: 0 }
        };
        let mut y = vec![0.0f32; x.len()];
        match &self.devices {
            Devices::One(gpu) => {
                let ((on_device, z, mut out), prepare_s) = timed(|| {
                    let z = z.map(|z| gpu.values(z)).transpose()?;
                    Ok::<_, Error>((gpu.values(x)?, z, gpu.new_values(x.len())?))
                })?;
                let mut run = move |y: Option<&mut [f32]>| {
                    match &z {
                        Some(z) => gpu.tew(&on_device, Arithmetic::Add, z, &mut out)?,
                        None => gpu.ts(&on_device, Arithmetic::Mul, 1.5, &mut out)?,
                    }
                    y.map_or(Ok(()), |y| out.download(y))
                };
                run(Some(&mut y))?;
                way(case, list, &self.label(format), prepare_s, deviation(&y), move || run(None));
            }
            Devices::Both(both) => {
                let run = move |y: &mut [f32]| match z {
                    Some(z) => both.tew(x, Arithmetic::Add, z, y),
                    None => both.ts(x, Arithmetic::Mul, 1.5, y),
                };
                run(&mut y)?;
                if self.shared(both, case, format) {
                    let found = deviation(&y);
                    way(case, list, &self.label(format), 0.0, found, move || run(&mut y));
                }
            }
        }
        Ok(())
    }

    /// TTM with the matrices by `algorithm`, or TTV with the vectors where there is none, that `operands` has for every mode, in `modes`
    /// of the tensor `x`, verified.
    pub fn product<'a>(
        &'a self,
        (cpu, x): (&Cpu, &CooTensor<f32>),
        case: &mut Case,
        list: &mut Vec<Contender<'a>>,
        (format, algorithm): (&str, Option<TtmAlgorithm>),
        modes: &[OfMode<'_>],
        operands: &'a [Mat<f32>],
    ) -> Result<()> {
        let column = |u: &'a Mat<f32>| u.as_ref().data();
        let cols = case.n;
        let made = timed(|| {
            Ok::<_, Error>(match &self.devices {
                Devices::One(gpu) if algorithm.is_none() => Product::Ttv(
                    modes
                        .iter()
                        .map(|&(mode, x, _)| {
                            Ok((
                                gpu.fibers(x)?,
                                gpu.values(&column(&operands[mode])[..x.dim()])?,
                                gpu.new_values(x.len())?,
                            ))
                        })
                        .collect::<Result<_>>()?,
                ),
                Devices::One(gpu) => Product::Ttm(
                    modes
                        .iter()
                        .map(|&(mode, x, _)| {
                            Ok((gpu.fibers(x)?, gpu.mat(operands[mode].as_ref())?, gpu.zeros(x.len(), cols)?))
                        })
                        .collect::<Result<_>>()?,
                ),
                Devices::Both(_) => Product::Shared(
                    modes
                        .iter()
                        .map(|&(_, x, _)| Ok((HeteroFibers::new(x), Mat::zeros(x.len(), cols)?)))
                        .collect::<Result<_>>()?,
                ),
            })
        });
        let (mut product, prepare_s) = match made {
            Ok(made) => made,
            Err(why) => {
                case.notes.push(format!("{}: {why}", self.label(format)));
                return Ok(());
            }
        };
        let numbers: Vec<usize> = modes.iter().map(|&(mode, ..)| mode).collect();
        let run = move |product: &mut Product| match (&self.devices, product) {
            (Devices::One(gpu), Product::Ttv(all)) => all.iter_mut().try_for_each(|(x, v, y)| gpu.ttv_into(x, v, y)),
            (Devices::One(gpu), Product::Ttm(all)) => {
                let algorithm = algorithm.unwrap_or_default();
                all.iter_mut().try_for_each(|(x, u, y)| gpu.ttm_into(x, u, algorithm, y))
            }
            (Devices::Both(both), Product::Shared(all)) => {
                all.iter_mut().zip(&numbers).try_for_each(|((x, y), &mode)| match algorithm {
                    None => {
                        let (dim, len) = (operands[mode].rows(), y.rows());
                        both.ttv_into(x, &column(&operands[mode])[..dim], &mut y.as_mut().into_data()[..len])
                    }
                    Some(algorithm) => both.ttm_into(x, operands[mode].as_ref(), algorithm, y.as_mut()),
                })
            }
            _ => Err(Error::Argument { name: "device", detail: "operands of other devices".to_owned() }),
        };
        if let Err(why) = run(&mut product) {
            case.notes.push(format!("{}: {why}", self.label(format)));
            return Ok(());
        }
        if let Devices::Both(both) = &self.devices
            && !self.shared(both, case, format)
        {
            return Ok(());
        }
        let mut worst = NO_DEVIATION;
        for (at, (mode, fibers, places)) in modes.iter().enumerate() {
            let mut y = Mat::zeros(fibers.len(), cols)?;
            match &product {
                Product::Ttv(all) => all[at].2.download(&mut y.as_mut().into_data()[..fibers.len()])?,
                Product::Ttm(all) => all[at].2.download(y.as_mut())?,
                Product::Shared(all) => y.clone_from(&all[at].1),
            }
            let u = operands[*mode].as_ref();
            worst = worse(worst, cpu.install(|| reference::ttm(x, *mode, u, places)?.deviation(y.as_ref()))?);
        }
        way(case, list, &self.label(format), prepare_s, worst, move || run(&mut product));
        Ok(())
    }

    /// MTTKRP of `modes`, verified; on both sides, each mode has a tree of its own, and no other format is taken.
    pub fn mttkrp<'a>(
        &'a self,
        (cpu, x): (&Cpu, &CooTensor<f32>),
        case: &mut Case,
        list: &mut Vec<Contender<'a>>,
        (name, format, algorithm): (&str, MttkrpFormat, Option<MttkrpAlgorithm>),
        views: &'a [MatRef<'a, f32>],
        modes: &[usize],
    ) -> Result<()> {
        let rank = case.n;
        let mut outs = modes.iter().map(|&mode| Mat::zeros(x.dims()[mode], rank)).collect::<Result<Vec<Mat<f32>>>>()?;
        let deviation = |outs: &[Mat<f32>]| {
            modes.iter().zip(outs).try_fold(NO_DEVIATION, |worst, (&mode, out)| {
                let found = cpu.install(|| reference::mttkrp(x, views, mode)?.deviation(out.as_ref()))?;
                Ok::<_, Error>(worse(worst, found))
            })
        };
        let numbers = modes.to_vec();
        match &self.devices {
            Devices::One(gpu) => {
                let made = timed(|| {
                    let tensor = cpu.install(|| gpu.prepare_mttkrp(x, Some(format), algorithm))?;
                    let products =
                        modes.iter().map(|&mode| gpu.zeros(x.dims()[mode], rank)).collect::<Result<Vec<_>>>()?;
                    Ok::<_, Error>((tensor, gpu.factors(views)?, products))
                });
                let ((tensor, factors, mut products), prepare_s) = match made {
                    Ok(made) => made,
                    Err(why) => {
                        case.notes.push(format!("{}: {why}", self.label(name)));
                        return Ok(());
                    }
                };
                let run = move |products: &mut [GpuMat<f32>]| {
                    let mut all = numbers.iter().zip(products);
                    all.try_for_each(|(&mode, out)| gpu.mttkrp(&tensor, &factors, mode, out))
                };
                run(&mut products)?;
                products.iter().zip(&mut outs).try_for_each(|(from, to)| from.download(to.as_mut()))?;
                way(case, list, &self.label(name), prepare_s, deviation(&outs)?, move || run(&mut products));
            }
            Devices::Both(both) if format == MttkrpFormat::CsfAll => {
                let tensor = HeteroTensor::new(x.clone(), rank);
                let by_elements = algorithm == Some(MttkrpAlgorithm::Element);
                let mut tensor = if by_elements { tensor.by_elements() } else { tensor };
                let mut run = move |outs: &mut [Mat<f32>]| {
                    let mut all = numbers.iter().zip(outs);
                    all.try_for_each(|(&mode, out)| both.mttkrp(&mut tensor, views, mode, out.as_mut()))
                };
                // The first run cuts and uploads.
                let ((), prepare_s) = timed(|| run(&mut outs))?;
                if self.shared(both, case, name) {
                    let found = deviation(&outs)?;
                    way(case, list, &self.label(name), prepare_s, found, move || run(&mut outs));
                }
            }
            Devices::Both(_) => {}
        }
        Ok(())
    }
}
