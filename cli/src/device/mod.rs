//! `--device`: where an operation runs.

mod executor;
mod list;
mod matrix;
mod tensor;

use serde::Serialize;

pub use executor::Devices;
pub use list::{Device, devices};
pub use matrix::{fusedmm, sddmm, spmm};
pub use sparsimd::gpu::{DeviceScalar, Portable};
pub use tensor::TensorDevice;

/// `cpu | gpu[:INDEX|:NAME] | hetero[:adaptive|:SHARE]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum DeviceName {
    /// The processor.
    #[default]
    Cpu,
    /// A Vulkan device: the best, or the one of this index or name.
    Gpu(String),
    /// The processor and the best Vulkan device, sharing as this says.
    Hetero(String),
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("cpu", "") => Ok(Self::Cpu),
            ("gpu", which) => Ok(Self::Gpu(which.to_owned())),
            ("hetero", "" | "adaptive") => Ok(Self::Hetero("adaptive".to_owned())),
            ("hetero", share) if share.parse().is_ok_and(|s: f64| (0.0..=1.0).contains(&s)) => {
                Ok(Self::Hetero(share.to_owned()))
            }
            _ => Err("not cpu, gpu[:INDEX|:NAME] or hetero[:adaptive|:SHARE], SHARE from 0 to 1".to_owned()),
        }
    }
}

/// `--device` and `--device-memory`.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Where it runs: cpu, gpu[:INDEX|:NAME] (a Vulkan device) or hetero[:adaptive|:SHARE] (both; SHARE of the work on the device)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: DeviceName,
    /// MiB of the device's memory that may be used; larger operands of matrix operations pass through in parts [default: all
    /// that is free]
    #[arg(long, value_name = "MIB")]
    pub device_memory: Option<u64>,
}

/// Where an operation ran, and what moving operands cost.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// The device's name; `"cpu"` for the processor alone.
    pub device: String,
    /// Of one run in kernels, by the device's own clock; null without one.
    pub kernel_s: Option<f64>,
    /// Copying operands to the device; null on the processor.
    pub upload_s: Option<f64>,
    /// Copying the result back; null on the processor.
    pub download_s: Option<f64>,
}

impl Ran {
    /// On the processor.
    pub fn on_cpu() -> Self {
        Self { device: "cpu".to_owned(), kernel_s: None, upload_s: None, download_s: None }
    }

    /// In words, one line; nothing for the processor.
    pub fn text(&self) -> Option<String> {
        let upload = self.upload_s?;
        let seconds = |s: Option<f64>| s.map_or("unknown".to_owned(), |s| format!("{s:.3e} s"));
        Some(format!(
            "device   {}: kernels {}, upload {upload:.3e} s, download {}\n",
            self.device,
            seconds(self.kernel_s),
            seconds(self.download_s)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceName;

    #[test]
    fn device_names() {
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("gpu".parse(), Ok(DeviceName::Gpu(String::new())));
        assert_eq!("gpu:1".parse(), Ok(DeviceName::Gpu("1".into())));
        assert_eq!("gpu:llvmpipe".parse(), Ok(DeviceName::Gpu("llvmpipe".into())));
        assert_eq!("hetero".parse(), Ok(DeviceName::Hetero("adaptive".into())));
        assert_eq!("hetero:0.25".parse(), Ok(DeviceName::Hetero("0.25".into())));
        for bad in ["", "tpu", "cpu:1", "hetero:2", "hetero:half", "hetero:-0.1"] {
            assert!(bad.parse::<DeviceName>().is_err(), "{bad}");
        }
    }
}
