//! The instruction set, chosen once and carried as a value.

#[cfg(target_arch = "x86_64")]
use core::any::TypeId;
#[cfg(target_arch = "x86_64")]
use core::mem::transmute_copy;

#[cfg(target_arch = "x86_64")]
use pulp::x86::V4;
use pulp::{Simd, WithSimd};

use crate::{Number, Scalar};

/// Dispatches `$task`, whose type is `$f32` or `$f64` by its element type, to code that is compiled in this crate: a
/// generic dispatch would be compiled again in every crate that uses it, for every instruction set. The last argument,
/// if there is one, is what to do with the task instead: where it first becomes one of several types.
macro_rules! dispatch_compiled {
    ($arch:expr, $task:expr, $f32:ty, $f64:ty) => {
        $crate::arch::dispatch_compiled!($arch, $task, $f32, $f64, |arch, task| arch.dispatch(task))
    };
    ($arch:expr, $task:expr, $f32:ty, $f64:ty, |$a:ident, $t:ident| $run:expr) => {{
        fn for_f32($a: $crate::Arch, $t: $f32) {
            $run;
        }
        fn for_f64($a: $crate::Arch, $t: $f64) {
            $run;
        }
        let task = $task;
        if T::NAME == <f32 as $crate::Number>::NAME {
            // SAFETY: T is f32 (`Scalar` is sealed), so that the types are the same; tasks are `Copy`.
            for_f32($arch, unsafe { core::mem::transmute_copy(&task) })
        } else {
            // SAFETY: T is f64, likewise.
            for_f64($arch, unsafe { core::mem::transmute_copy(&task) })
        }
    }};
}
pub(crate) use dispatch_compiled;

/// Likewise a task of type `$of<D>`, by what its operands store.
macro_rules! dispatch_stored {
    ($arch:expr, $task:expr, $of:ident) => {
        $crate::arch::dispatch_stored!($arch, $task, $of, |arch, task| arch.dispatch(task))
    };
    ($arch:expr, $task:expr, $of:ident, |$a:ident, $t:ident| $run:expr) => {{
        let task = $task;
        macro_rules! run {
            ($d:ty) => {{
                fn run($a: $crate::Arch, $t: $of<$d>) {
                    $run
                }
                // SAFETY: D is this type (`Stored` is sealed, names differ), so that the types are the same; tasks are `Copy`.
                run($arch, unsafe { core::mem::transmute_copy(&task) })
            }};
        }
        match const { D::DTYPE.as_bytes() } {
            b"f32" => run!(f32),
            b"f64" => run!(f64),
            b"bf16" => run!(half::bf16),
            _ => run!(half::f16),
        }
    }};
}
pub(crate) use dispatch_stored;

/// An instruction set that this processor was seen to have: holding the value is the proof.
#[derive(Clone, Copy, Debug)]
pub struct Arch(Inner);

#[derive(Clone, Copy, Debug)]
enum Inner {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    V3(pulp::x86::V3),
    #[cfg(target_arch = "x86_64")]
    V4(pulp::x86::V4),
    #[cfg(target_arch = "aarch64")]
    Neon(pulp::aarch64::Neon),
}

impl Arch {
    /// The widest instruction set of this processor.
    pub fn detect() -> Self {
        *Self::available().last().expect("scalar is always there")
    }

    /// The instruction set called `name` (one of [`Arch::available`]'s names), if this processor has it.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|arch| arch.name() == name)
    }

    /// Every instruction set of this processor that the kernels are compiled for, narrowest first.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Inner::Scalar];
        #[cfg(target_arch = "x86_64")]
        // Processors with AVX2 have F16C (x86-64-v3), for which pulp does not ask.
        all.extend(pulp::x86::V3::try_new().filter(|_| is_x86_feature_detected!("f16c")).map(Inner::V3));
        #[cfg(target_arch = "x86_64")]
        all.extend(pulp::x86::V4::try_new().map(Inner::V4));
        #[cfg(target_arch = "aarch64")]
        all.extend(pulp::aarch64::Neon::try_new().map(Inner::Neon));
        all.into_iter().map(Self).collect()
    }

    /// `"scalar"`, `"avx2"`, `"avx512"` or `"neon"`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Inner::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Inner::V3(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Inner::V4(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Inner::Neon(_) => "neon",
        }
    }

    /// Bytes of one vector register; of the scalar one, of the largest element.
    pub fn vector_bytes(self) -> usize {
        match self.0 {
            Inner::Scalar => 8,
            #[cfg(target_arch = "x86_64")]
            Inner::V3(_) => 32,
            #[cfg(target_arch = "x86_64")]
            Inner::V4(_) => 64,
            #[cfg(target_arch = "aarch64")]
            Inner::Neon(_) => 16,
        }
    }

    /// Elements of one vector register.
    pub fn lanes<T: Number>(self) -> usize {
        if matches!(self.0, Inner::Scalar) { 1 } else { self.vector_bytes() / size_of::<T>() }
    }

    /// The widest instruction set, of this one and narrower ones, whose registers divide rows of `width` elements; this one where none
    /// does that has registers of more than one element. For a call's tasks, not for each: it asks what the processor has.
    pub fn dividing<T: Scalar>(self, width: usize) -> Self {
        let fits = |arch: &Self| arch.lanes::<T>() > 1 && width.is_multiple_of(arch.lanes::<T>());
        if fits(&self) {
            return self;
        }
        let narrower = |arch: &Self| arch.vector_bytes() < self.vector_bytes() && fits(arch);
        Self::available().into_iter().rev().find(narrower).unwrap_or(self)
    }

    /// Vector registers.
    pub fn registers(self) -> usize {
        match self.0 {
            Inner::Scalar => <pulp::Scalar as Simd>::REGISTER_COUNT,
            #[cfg(target_arch = "x86_64")]
            Inner::V3(_) => <pulp::x86::V3 as Simd>::REGISTER_COUNT,
            #[cfg(target_arch = "x86_64")]
            Inner::V4(_) => <pulp::x86::V4 as Simd>::REGISTER_COUNT,
            #[cfg(target_arch = "aarch64")]
            Inner::Neon(_) => <pulp::aarch64::Neon as Simd>::REGISTER_COUNT,
        }
    }

    /// Runs `op` compiled for this instruction set. Call it once per task: it is a function boundary that nothing inlines
    /// through, and what runs below it must be `#[inline(always)]` to keep the target features.
    #[inline(always)]
    pub fn dispatch<Op: WithSimd>(self, op: Op) -> Op::Output {
        match self.0 {
            Inner::Scalar => Simd::vectorize(pulp::Scalar, op),
            #[cfg(target_arch = "x86_64")]
            Inner::V3(simd) => Simd::vectorize(simd, op),
            #[cfg(target_arch = "x86_64")]
            Inner::V4(simd) => Simd::vectorize(simd, op),
            #[cfg(target_arch = "aarch64")]
            Inner::Neon(simd) => Simd::vectorize(simd, op),
        }
    }
}

impl Arch {
    /// Runs `op` as [`Arch::dispatch`] does where there are vectors, and `scalar` where there are none: what is specialised for
    /// the registers of a row need not be compiled without them.
    #[inline(always)]
    pub(crate) fn dispatch_vectors<Op: WithSimd<Output = ()>>(self, op: Op, scalar: impl FnOnce(pulp::Scalar)) {
        match self.0 {
            Inner::Scalar => scalar(pulp::Scalar),
            #[cfg(target_arch = "x86_64")]
            Inner::V3(simd) => Simd::vectorize(simd, op),
            #[cfg(target_arch = "x86_64")]
            Inner::V4(simd) => Simd::vectorize(simd, op),
            #[cfg(target_arch = "aarch64")]
            Inner::Neon(simd) => Simd::vectorize(simd, op),
        }
    }

    /// Runs `halves` on registers of half as many bytes where the instruction set is AVX-512, which has twice as many of them as AVX2, and
    /// `whole` where it is another that has vectors.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn dispatch_halves<H, Op>(self, halves: H, whole: Op)
    where
        H: WithSimd<Output = ()>,
        Op: WithSimd<Output = ()>,
    {
        match self.0 {
            Inner::Scalar => {}
            #[cfg(target_arch = "x86_64")]
            Inner::V3(simd) => Simd::vectorize(simd, whole),
            #[cfg(target_arch = "x86_64")]
            Inner::V4(simd) => Simd::vectorize(simd, Halves(halves)),
            #[cfg(target_arch = "aarch64")]
            Inner::Neon(simd) => Simd::vectorize(simd, whole),
        }
    }
}

/// Runs on registers of half the size in code of AVX-512.
#[cfg(target_arch = "x86_64")]
struct Halves<Op>(Op);

#[cfg(target_arch = "x86_64")]
impl<Op: WithSimd<Output = ()>> WithSimd for Halves<Op> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if same::<S, V4>() {
            // SAFETY: the types are the same, as has just been shown.
            let simd = unsafe { transmute_copy::<S, V4>(&simd) };
            self.0.with_simd(*simd);
        }
    }
}

/// Whether `A` and `B` are the same type; known at compile time, so that the other arm vanishes.
#[cfg(target_arch = "x86_64")]
pub(crate) fn same<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}
