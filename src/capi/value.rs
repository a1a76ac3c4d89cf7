//! Values of either element type behind one handle.

use sparsimd_kernels::Scalar;

use super::status::{Failure, Outcome, Status};

/// A type for each element type.
pub(super) trait Family {
    /// How messages call it.
    const NAME: &'static str;
    /// The type.
    type Of<T: Scalar>;
}

/// One of the two.
pub(super) enum Either<F: Family> {
    F32(F::Of<f32>),
    F64(F::Of<f64>),
}

/// f32 and f64, with their side of an [`Either`].
pub(super) trait Element: Scalar {
    fn side<F: Family>(either: &Either<F>) -> Option<&F::Of<Self>>;
    fn side_mut<F: Family>(either: &mut Either<F>) -> Option<&mut F::Of<Self>>;
    fn either<F: Family>(value: F::Of<Self>) -> Either<F>;
}

macro_rules! element {
    ($type:ty, $side:ident) => {
        impl Element for $type {
            fn side<F: Family>(either: &Either<F>) -> Option<&F::Of<Self>> {
                if let Either::$side(value) = either { Some(value) } else { None }
            }
            fn side_mut<F: Family>(either: &mut Either<F>) -> Option<&mut F::Of<Self>> {
                if let Either::$side(value) = either { Some(value) } else { None }
            }
            fn either<F: Family>(value: F::Of<Self>) -> Either<F> {
                Either::$side(value)
            }
        }
    };
}
element!(f32, F32);
element!(f64, F64);

fn other_type<F: Family, T: Scalar>() -> Failure {
    Failure(Status::Handle, format!("{}: the handle does not hold values of type {}", F::NAME, T::NAME))
}

impl<F: Family> Either<F> {
    /// The value, if it is of element type `T`.
    pub fn of<T: Element>(&self) -> Outcome<&F::Of<T>> {
        T::side(self).ok_or_else(other_type::<F, T>)
    }

    /// The value to be changed, if it is of element type `T`.
    pub fn of_mut<T: Element>(&mut self) -> Outcome<&mut F::Of<T>> {
        T::side_mut(self).ok_or_else(other_type::<F, T>)
    }
}
