//! What the kernels and the host agree on: workgroup size, specialisation constants, task words, push constants.
//!
//! Sizes and offsets of dense operands count *blocks* of four elements (`Vec4`, `DVec4`): the unit that one lane loads.
#![no_std]

/// Invocations of a workgroup, in every kernel. A multiple of every subgroup size that a device may have (4 to 128).
pub const WORKGROUP: u32 = 128;

/// Elements of a block.
pub const BLOCK: usize = 4;

/// Blocks of a lane at most: the largest value of [`spec::REGISTERS`].
pub const MAX_REGISTERS: u32 = 4;

/// Lanes of a team at least: SDDMM gives each lane of a quad one of four dot products.
pub const MIN_TEAM: u32 = 4;

/// Nonzeros of a task of the atomic MTTKRP: runs of one output row are seldom longer, and short ones keep all of a device busy.
pub const RUN: u32 = 64;

/// Coordinates of a HiCOO block in each mode: the blocked MTTKRP's rows of the output, and of a part's copy of them.
pub const BLOCK_SIDE: u32 = 128;

/// The fourth word of a task that owns its row alone; otherwise that word is the task's slot among the partial rows.
pub const WHOLE: u32 = u32::MAX;

/// Ids of the specialisation constants.
pub mod spec {
    /// Lanes of a team: the invocations that work on one task. A power of two.
    pub const TEAM: u32 = 0;
    /// Blocks that each lane of a team owns: 1, 2 or 4.
    pub const REGISTERS: u32 = 1;
    /// Which edge function (`edge::*`), or which operator.
    pub const VARIANT: u32 = 2;
    /// What dense operands store where that is narrower than what they are computed with (`format::*`).
    pub const FORMAT: u32 = 3;
}

/// Values of [`spec::FORMAT`].
pub mod format {
    /// IEEE's 16 bits: 5 of exponent, 10 of mantissa.
    pub const F16: u32 = 0;
    /// The upper half of an f32.
    pub const BF16: u32 = 1;
}

/// Values of [`spec::VARIANT`] where it chooses the edge function of FusedMM.
pub mod edge {
    /// The dot product itself.
    pub const IDENTITY: u32 = 0;
    /// Times the value of the sparse matrix.
    pub const SCALE: u32 = 1;
    /// Logistic function of the dot product.
    pub const SIGMOID: u32 = 2;
    /// Softmax over the row of the scaled dot products.
    pub const SOFTMAX: u32 = 3;
}

/// Values of [`spec::VARIANT`] where it chooses the operator of TEW and TS.
pub mod operator {
    /// x + y.
    pub const ADD: u32 = 0;
    /// x - y.
    pub const SUB: u32 = 1;
    /// x y.
    pub const MUL: u32 = 2;
    /// x / y.
    pub const DIV: u32 = 3;
}

/// Values of [`spec::VARIANT`] where it chooses what `ceilings` does.
pub mod ceiling {
    /// z = x.
    pub const COPY: u32 = 0;
    /// z = x + y.
    pub const ADD: u32 = 1;
    /// z = x + s y.
    pub const MULTIPLY_ADD: u32 = 2;
    /// Multiply-adds in registers.
    pub const REGISTERS: u32 = 3;
    /// Blocks of a lane that are multiplied and added to, each on its own.
    pub const CHAINS: u32 = 8;
}

/// Push constants: words and floats without padding, so that the host may copy them byte by byte.
///
/// # Safety
/// The type is `repr(C)`, has no padding and any bit pattern is valid for it.
pub unsafe trait PushConstants: Copy + 'static {}

// SAFETY: a word.
unsafe impl PushConstants for u32 {}

/// The element types, `f32` and `f64`.
///
/// # Safety
/// No padding, and any bit pattern is valid.
pub unsafe trait Number: Copy + 'static {}

// SAFETY: a float.
unsafe impl Number for f32 {}
// SAFETY: a float.
unsafe impl Number for f64 {}

/// Declares a struct of push constants for f32 and f64: two numbers, then an even number of words.
macro_rules! params {
    ($(#[$doc:meta])* $name:ident { $(#[$xdoc:meta])* $x:ident, $(#[$ydoc:meta])* $y:ident,
       $($(#[$fdoc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T> {
            $(#[$xdoc])* pub $x: T,
            $(#[$ydoc])* pub $y: T,
            $($(#[$fdoc])* pub $field: u32,)*
        }
        #[cfg(not(target_arch = "spirv"))]
        const _: () = {
            let words = [$(stringify!($field)),*].len();
            assert!(words % 2 == 0);
            assert!(size_of::<$name<f32>>() == 4 * (2 + words));
            assert!(size_of::<$name<f64>>() == 4 * (4 + words));
            assert!(4 * (4 + words) <= 128);
        };
        // SAFETY: repr(C), numbers and words only; the sizes asserted above leave no room for padding.
        unsafe impl<T: Number> PushConstants for $name<T> {}
    };
}

params! {
    /// Push constants of `spmm` and `reduce_rows`.
    SpmmParams {
        /// Factor of the product.
        alpha,
        /// Factor of the old C.
        beta,
        /// Number of tasks.
        tasks,
        /// Blocks of a row to compute.
        width,
        /// Blocks from one row of B to the next.
        b_stride,
        /// First block of a row of B.
        b_offset,
        /// Blocks from one row of C to the next.
        c_stride,
        /// First block of a row of C.
        c_offset,
        /// 0: C is not read.
        read_c,
        /// Elements that count in the last block of `width`: 1 to 4. The others are stored as zeros.
        tail,
    }
}

params! {
    /// Push constants of `sddmm`.
    SddmmParams {
        /// Factor of every dot product.
        alpha,
        /// Not used.
        beta,
        /// Number of tasks.
        tasks,
        /// Blocks of a dot product.
        width,
        /// Blocks from one row of C to the next.
        c_stride,
        /// First block of a row of C.
        c_offset,
        /// Blocks from one row of B to the next.
        b_stride,
        /// First block of a row of B.
        b_offset,
        /// Not 0: each dot product is multiplied by the value of the sparse matrix.
        scaled,
        /// Not 0: the result is added to the output.
        accumulate,
    }
}

params! {
    /// Push constants of `fusedmm` and `edge`.
    FusedParams {
        /// Factor of the scores of softmax.
        scale,
        /// Not used.
        zero,
        /// Number of tasks.
        tasks,
        /// Blocks of a row of C and B.
        width,
        /// Blocks from one row of C to the next.
        c_stride,
        /// Blocks from one row of B to the next.
        b_stride,
        /// Blocks from one row of D to the next.
        d_stride,
        /// Blocks from one row of E to the next.
        e_stride,
        /// Blocks of a row of D and E.
        out_width,
        /// Elements that count in the last block of E: 1 to 4. The others are stored as zeros.
        tail,
    }
}

params! {
    /// Push constants of `mttkrp_fibers`, `mttkrp_nonzeros`, `mttkrp_atomic` and `elements`.
    MttkrpParams {
        /// Not used.
        zero,
        /// Not used.
        one,
        /// Number of tasks.
        tasks,
        /// Blocks of a row to compute.
        width,
        /// Blocks from one row of the stacked factors to the next.
        f_stride,
        /// First block of a row of the stacked factors.
        f_offset,
        /// Blocks from one row of the output to the next.
        c_stride,
        /// First block of a row of the output.
        c_offset,
        /// Coordinates of a fiber in the table; 0 for TTM.
        levels,
        /// The coordinate that is the output's row; `levels` when that is the leaf's.
        skip,
        /// Not 0: items are reached through the order list.
        ordered,
        /// Elements that count in the last block of `width`: 1 to 4. The others are stored as zeros.
        tail,
    }
}

params! {
    /// Push constants of `ceilings`.
    CeilingParams {
        /// s of the multiply-adds, below 1: sums stay finite.
        scale,
        /// What is added in registers.
        shift,
        /// Blocks of a slice.
        slice,
        /// Slices of x and y.
        slices,
        /// Slices that a workgroup goes on after each pass: 0 or 1.
        turn,
        /// Passes over a slice, or multiply-adds of a block in registers.
        passes,
    }
}

params! {
    /// Push constants of `elementwise`.
    ElementwiseParams {
        /// The second operand of TS.
        scalar,
        /// Not used.
        zero,
        /// Number of elements.
        count,
        /// Not 0: the second operand is an array (TEW).
        pairwise,
    }
}
