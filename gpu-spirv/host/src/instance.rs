//! The Vulkan instance, and the validation layer's messages.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::{ext, vk};

use crate::error::{Error, Result};

/// The layer that checks every call.
const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Where the validation layer's messages are collected.
type Messages = Mutex<Vec<String>>;

/// An open Vulkan loader and instance.
pub struct Instance {
    pub(crate) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    messages: Arc<Messages>,
    // Keeps the loader's library open.
    _entry: ash::Entry,
}

impl Instance {
    /// Opens the loader. With `validation`, the Khronos layer checks every call and [`Instance::messages`] collects its words.
    ///
    /// # Errors
    /// [`Error::NoVulkan`] when there is no loader, no driver, or (if asked for) no validation layer.
    pub fn new(validation: bool) -> Result<Arc<Self>> {
        let fail = |what: &str, e: &dyn std::fmt::Display| Error::NoVulkan(format!("{what}: {e}"));
        // SAFETY: the loader's initialisers are trusted as the system's own library.
        let entry = unsafe { ash::Entry::load() }.map_err(|e| fail("loader", &e))?;
        // SAFETY: the entry is live; the same holds for every call on it below.
        let version = unsafe { entry.try_enumerate_instance_version() }.map_err(|e| fail("version", &e))?;
        if version.unwrap_or(vk::API_VERSION_1_0) < vk::API_VERSION_1_2 {
            return Err(Error::NoVulkan("the loader is older than Vulkan 1.2".into()));
        }
        let mut layers = Vec::new();
        let mut extensions = Vec::new();
        if validation {
            // SAFETY: as above.
            let present = unsafe { entry.enumerate_instance_layer_properties() }.map_err(|e| fail("layers", &e))?;
            if !present.iter().any(|l| l.layer_name_as_c_str() == Ok(VALIDATION)) {
                return Err(Error::NoVulkan("the validation layer is not installed".into()));
            }
            layers.push(VALIDATION.as_ptr());
            extensions.push(ext::debug_utils::NAME.as_ptr());
        }
        let app = vk::ApplicationInfo::default().application_name(c"sparsimd").api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        // SAFETY: all names are NUL-terminated statics that outlive the call.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|e| fail("instance", &e))?;
        let messages = Arc::new(Messages::default());
        let mut instance = Self { raw, messenger: None, messages, _entry: entry };
        if validation {
            instance.listen()?;
        }
        Ok(Arc::new(instance))
    }

    fn listen(&mut self) -> Result<()> {
        let debug = ext::debug_utils::Instance::new(&self._entry, &self.raw);
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
            )
            .message_type(
                vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
            )
            .pfn_user_callback(Some(collect))
            .user_data(Arc::as_ptr(&self.messages).cast_mut().cast());
        // SAFETY: the messages live in this value, which destroys the messenger before it drops them.
        let messenger = unsafe { debug.create_debug_utils_messenger(&info, None) }
            .map_err(|e| Error::NoVulkan(format!("debug messenger: {e}")))?;
        self.messenger = Some((debug, messenger));
        Ok(())
    }

    /// What the validation layer has said so far.
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold an `Arc` of this value, so none is left; the messenger goes before the instance.
        unsafe {
            if let Some((debug, messenger)) = self.messenger.take() {
                debug.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}

/// Appends one message to the list behind `user`.
///
/// # Safety
/// Called by the validation layer with `data` and its message valid, and `user` the [`Messages`] given at creation.
unsafe extern "system" fn collect(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: this function's contract.
    let (messages, data) = unsafe { (&*user.cast::<Messages>(), &*data) };
    // SAFETY: as above.
    let text = unsafe { data.message_as_c_str() }.map_or_else(String::new, |m| m.to_string_lossy().into_owned());
    messages.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    vk::FALSE
}
