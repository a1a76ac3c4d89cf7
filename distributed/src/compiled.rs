//! The generic functions that are compiled with this crate, for f32 and f64: the program that calls them is compiled for short
//! builds. As in the library, the compiler shares an instance that the defining crate has made of a function that is
//! `#[inline(never)]`. Only for ranks of an MPI: who simulates them calls none of these.

use std::hint::black_box;

use sparsimd::edge::BuiltIn;

use crate::{DistCsr, DistMat, DistTensor, Element, read_entries, read_rows, share_rows};

fn instances<T: Element>() {
    black_box([
        DistCsr::<T>::new as *const (),
        DistCsr::<T>::prepare as *const (),
        DistCsr::<T>::spmm_of as *const (),
        DistCsr::<T>::sddmm_of as *const (),
        DistCsr::<T>::fusedmm_of::<BuiltIn<T>> as *const (),
        DistCsr::<T>::fusedmm_gradient_of as *const (),
        DistMat::<T>::zeros as *const (),
        DistMat::<T>::into_common as *const (),
        DistTensor::<T>::new as *const (),
        DistTensor::<T>::cp_als_observed as *const (),
        DistTensor::<T>::whole as *const (),
        DistTensor::<T>::save as *const (),
        DistTensor::<T>::load as *const (),
        read_rows::<T> as *const (),
        read_entries::<T> as *const (),
        share_rows::<T> as *const (),
    ]);
}

/// Has the functions of this module compiled. Does nothing that anybody would need.
#[doc(hidden)]
#[inline(never)]
pub fn compiled() {
    instances::<f32>();
    instances::<f64>();
}
