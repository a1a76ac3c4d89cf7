//! A kernel, specialised and ready to be launched.

use std::sync::Arc;

use ash::vk;

use crate::device::{Device, Shared};
use crate::error::{Error, Result};
use crate::module::Module;

/// A compiled and specialised kernel.
pub struct Pipeline {
    pub(crate) shared: Arc<Shared>,
    pub(crate) raw: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) set_layout: vk::DescriptorSetLayout,
    pub(crate) bindings: u32,
    pub(crate) push_bytes: u32,
}

impl Pipeline {
    /// Compiles `module` with `push_bytes` of push constants, the specialisation constants `(id, value)`, and subgroups of the
    /// device's chosen size, all of them full.
    ///
    /// # Errors
    /// [`Error::Feature`] when the module needs capabilities that the device lacks, or a failed call.
    pub fn new(device: &Device, module: &Module, push_bytes: usize, constants: &[(u32, u32)]) -> Result<Self> {
        const FLOAT64: u32 = 10;
        const INT64: u32 = 11;
        const ATOMIC_ADD_F32: u32 = 6033;
        let shared = &device.shared;
        shared.check_alive()?;
        let info = module.info();
        let lacks = |feature: &str| Error::Feature { device: shared.info.name.clone(), feature: feature.to_owned() };
        for &capability in &info.capabilities {
            match capability {
                FLOAT64 | INT64 if !shared.info.float64 => return Err(lacks("shaderFloat64 and shaderInt64")),
                ATOMIC_ADD_F32 if !shared.info.atomic_add_f32 => return Err(lacks("shaderBufferFloat32AtomicAdd")),
                _ => {}
            }
        }
        let mut made = Self {
            shared: shared.clone(),
            raw: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            bindings: info.bindings,
            push_bytes: push_bytes as u32,
        };
        let bindings: Vec<_> = (0..info.bindings)
            .map(|b| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(b)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let set = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the device is live (as in every call below), and the create infos outlive the calls. What has been made is
        // freed by `made` when a later step fails.
        made.set_layout = unsafe { shared.raw.create_descriptor_set_layout(&set, None) }
            .map_err(shared.failed("vkCreateDescriptorSetLayout"))?;
        let sets = [made.set_layout];
        let ranges =
            [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(push_bytes as u32)];
        let mut layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        if push_bytes > 0 {
            layout = layout.push_constant_ranges(&ranges);
        }
        // SAFETY: as above.
        made.layout = unsafe { shared.raw.create_pipeline_layout(&layout, None) }
            .map_err(shared.failed("vkCreatePipelineLayout"))?;
        let code = vk::ShaderModuleCreateInfo::default().code(&module.words);
        // SAFETY: as above; the module was checked against its manifest and validated when it was built.
        let shader =
            unsafe { shared.raw.create_shader_module(&code, None) }.map_err(shared.failed("vkCreateShaderModule"))?;
        let used: Vec<_> = constants.iter().filter(|(id, _)| info.spec_constants.contains(id)).collect();
        let entries: Vec<_> = used
            .iter()
            .enumerate()
            .map(|(i, &&(id, _))| vk::SpecializationMapEntry { constant_id: id, offset: 4 * i as u32, size: 4 })
            .collect();
        let values: Vec<u8> = used.iter().flat_map(|&&(_, v)| v.to_ne_bytes()).collect();
        let specialisation = vk::SpecializationInfo::default().map_entries(&entries).data(&values);
        let mut subgroup = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(shared.info.subgroup);
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS)
            .module(shader)
            .name(&module.entry_point)
            .specialization_info(&specialisation)
            .push_next(&mut subgroup);
        let create = vk::ComputePipelineCreateInfo::default().stage(stage).layout(made.layout);
        // SAFETY: as above.
        let result = unsafe { shared.raw.create_compute_pipelines(shared.pipeline_cache, &[create], None) };
        // SAFETY: the pipeline does not need the module any more.
        unsafe { shared.raw.destroy_shader_module(shader, None) };
        made.raw = match result {
            Ok(pipelines) => pipelines[0],
            Err((_, code)) => return Err(shared.failed("vkCreateComputePipelines")(code)),
        };
        Ok(made)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.shared.is_dead() {
            return;
        }
        // SAFETY: streams wait for their work before they return, so nothing uses the pipeline; null handles are ignored.
        unsafe {
            self.shared.raw.destroy_pipeline(self.raw, None);
            self.shared.raw.destroy_pipeline_layout(self.layout, None);
            self.shared.raw.destroy_descriptor_set_layout(self.set_layout, None);
        }
    }
}
