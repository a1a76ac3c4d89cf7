//! Arrays of numpy as operands, by their strides.
//!
//! Row-major with unit column stride and rows at least as far apart as they are long is what the library reads: such arrays are used where
//! they are. Anything else becomes one copy, made by `sparsimd._arrays`. Results are never copied. Arrays of bf16 and f16 come from
//! there as arrays of their bits.

use std::ops::Range;
use std::sync::OnceLock;

use numpy::ndarray::ArrayView2;
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NPY_TYPES, objects::_PyArray_GET_ITEM_DATA};
use numpy::{
    PyArray, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use sparsimd::ops::Differentiable;
use sparsimd::{MatMut, MatRef, Number, Scalar, bf16, f16};

use crate::error::{count, value};

/// Element types of dense operands.
pub trait Entry: Copy + Default + Send + Sync + 'static {
    /// What numpy's arrays of it are read as: its bits, where numpy itself has no such type.
    type Numpy: numpy::Element;
    /// numpy's name for it.
    const NUMPY: &'static str;
    /// Whether it has 16 bits.
    const HALF: bool = false;
}

/// Element types of matrices.
pub trait Value: Entry<Numpy = Self> + Number + numpy::Element {}

/// Those that every operation computes with.
pub trait Element: Value + Scalar {
    /// That of this type.
    fn differentiable<'a>(
        single: &'a OnceLock<Differentiable<f32>>,
        double: &'a OnceLock<Differentiable<f64>>,
    ) -> &'a OnceLock<Differentiable<Self>>;
}

macro_rules! entries {
    ($($t:ident $numpy:ident $name:literal $half:literal)*) => {
        $(impl Entry for $t {
            type Numpy = $numpy;
            const NUMPY: &'static str = $name;
            const HALF: bool = $half;
        })*
    };
}
entries!(f32 f32 "float32" false f64 f64 "float64" false i32 i32 "int32" false i64 i64 "int64" false);
entries!(bf16 u16 "bfloat16" true f16 u16 "float16" true);

impl Value for f32 {}
impl Value for f64 {}
impl Value for i32 {}
impl Value for i64 {}

impl Element for f32 {
    fn differentiable<'a>(
        single: &'a OnceLock<Differentiable<f32>>,
        _: &'a OnceLock<Differentiable<f64>>,
    ) -> &'a OnceLock<Differentiable<f32>> {
        single
    }
}

impl Element for f64 {
    fn differentiable<'a>(
        _: &'a OnceLock<Differentiable<f32>>,
        double: &'a OnceLock<Differentiable<f64>>,
    ) -> &'a OnceLock<Differentiable<f64>> {
        double
    }
}

/// Where the lines of an array are, in elements.
#[derive(Clone, Copy)]
struct Lines {
    rows: usize,
    cols: usize,
    stride: usize,
}

impl Lines {
    /// Of an array of one dimension (a column) or two, transposed if so asked; none when the library cannot read it there.
    fn of(shape: &[usize], strides: &[isize], bytes: usize, transposed: bool) -> Option<Self> {
        let (rows, cols, row_stride, col_stride) = match (shape, strides, transposed) {
            (&[n], &[stride], _) => (n, 1, stride, bytes as isize),
            (&[m, n], &[s, t], false) => (m, n, s, t),
            (&[m, n], &[s, t], true) => (n, m, t, s),
            _ => return None,
        };
        if rows == 0 || cols == 0 {
            return Some(Self { rows, cols, stride: cols });
        }
        if cols > 1 && col_stride != bytes as isize {
            return None;
        }
        if rows == 1 {
            return Some(Self { rows, cols, stride: cols });
        }
        let row_stride = usize::try_from(row_stride).ok()?;
        let stride = row_stride / bytes;
        (row_stride % bytes == 0 && stride >= cols).then_some(Self { rows, cols, stride })
    }

    /// Elements from the first to the last.
    fn len(self) -> usize {
        if self.rows == 0 || self.cols == 0 { 0 } else { (self.rows - 1) * self.stride + self.cols }
    }
}

/// A dense operand: an array that is kept alive, and where its lines are.
pub struct Dense<'py, T: Entry> {
    array: Bound<'py, PyArrayDyn<T::Numpy>>,
    lines: Lines,
    /// Whether it has one dimension.
    pub vector: bool,
}

impl<'py, T: Entry> Dense<'py, T> {
    /// The argument `name`, transposed if so asked. `copy` says whether an array that cannot be read where it is may be copied.
    pub fn of(object: &Bound<'py, PyAny>, name: &str, transposed: bool, copy: bool) -> PyResult<Self> {
        if !T::HALF
            && let Some(found) = Self::in_place(object, transposed)
        {
            return Ok(found);
        }
        let helper = helper(object.py(), &OPERAND, "operand")?;
        let made = helper.call1((object, name, T::NUMPY, transposed, copy))?;
        Self::in_place(&made, transposed)
            .ok_or_else(|| PyTypeError::new_err(format!("{name}: cannot be read as an array")))
    }

    fn in_place(object: &Bound<'py, PyAny>, transposed: bool) -> Option<Self> {
        let array = object.cast::<PyArrayDyn<T::Numpy>>().ok()?;
        let lines = Lines::of(array.shape(), array.strides(), size_of::<T>(), transposed)?;
        let vector = array.ndim() == 1;
        (lines.len() == 0 || array.data().is_aligned()).then(|| Self { array: array.clone(), lines, vector })
    }

    /// The interpreter that it is of.
    pub fn py(&self) -> Python<'py> {
        self.array.py()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.lines.rows
    }

    /// Number of columns; 1 for a vector.
    pub fn cols(&self) -> usize {
        self.lines.cols
    }

    /// The operand as the library takes it.
    pub fn view(&self) -> MatRef<'_, T> {
        let data = match self.lines.len() {
            0 => &[][..],
            // SAFETY: numpy has these elements, or their bits, aligned, for as long as the array lives, which `self` keeps alive. Another thread of Python
            // that writes to them meanwhile is a race that numpy's own functions have as well: any bytes are a number.
            len => unsafe { std::slice::from_raw_parts(self.array.data().cast::<T>(), len) },
        };
        MatRef::new(data, self.lines.rows, self.lines.cols, self.lines.stride).expect("lines fit their array")
    }

    /// The elements of a vector without gaps.
    pub fn slice(&self) -> Option<&[T]> {
        (self.lines.cols == 1 && self.lines.stride == 1 || self.lines.len() == 0).then(|| self.view().data())
    }

    /// Its addresses.
    pub fn range(&self) -> Range<usize> {
        let bytes = self.lines.len() * size_of::<T>();
        self.array.data().addr()..self.array.data().addr() + bytes
    }

    /// An error unless it has `rows` rows and, unless `None`, `cols` columns.
    pub fn expect(&self, name: &str, rows: usize, cols: Option<usize>) -> PyResult<()> {
        if self.rows() == rows && cols.is_none_or(|cols| cols == self.cols()) {
            return Ok(());
        }
        let cols = cols.map_or("n".to_owned(), |cols| cols.to_string());
        let shape = shape_text(self.array.shape());
        Err(value(
            name,
            format!("has shape {shape}; ({rows}, {cols}) is expected, counted as the matrix is multiplied"),
        ))
    }
}

/// A shape as Python writes it.
pub fn shape_text(shape: &[usize]) -> String {
    match shape {
        [n] => format!("({n},)"),
        _ => format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The result of an operation: an array of the caller or a new one.
pub struct Output<'py, T: Entry> {
    array: Bound<'py, PyArrayDyn<T::Numpy>>,
    /// What the caller gets.
    pub object: Bound<'py, PyAny>,
    lines: Lines,
}

impl<'py, T: Entry> Output<'py, T> {
    /// The argument `out`, to be used where it is: `rows` x `cols`, or `rows` long for a vector; a new array for none.
    /// `inputs` are addresses that it must not touch.
    pub fn of(
        py: Python<'py>,
        out: Option<&Bound<'py, PyAny>>,
        (rows, cols): (usize, usize),
        vector: bool,
        inputs: &[Range<usize>],
    ) -> PyResult<Self> {
        let Some(object) = out else {
            let array = fresh::<T>(py, rows, cols, vector)?;
            let lines = Lines { rows, cols, stride: cols };
            let object = match T::HALF {
                true => helper(py, &HALVES, "halves")?.call1((&array, T::NUMPY))?,
                false => array.clone().into_any(),
            };
            return Ok(Self { object, array, lines });
        };
        let viewed;
        let array = match object.cast::<PyArrayDyn<T::Numpy>>() {
            Ok(array) if !T::HALF => array,
            _ => {
                viewed = helper(py, &OUTPUT, "output")?.call1((object, T::NUMPY))?;
                viewed
                    .cast::<PyArrayDyn<T::Numpy>>()
                    .map_err(|_| PyTypeError::new_err("out: cannot be used as an array"))?
            }
        };
        let expected = if vector { &[rows][..] } else { &[rows, cols] };
        if array.shape() != expected {
            let (got, want) = (shape_text(array.shape()), shape_text(expected));
            return Err(value("out", format!("has shape {got}; {want} is expected")));
        }
        let lines = Lines::of(array.shape(), array.strides(), size_of::<T>(), false);
        let Some(lines) = lines.filter(|lines| lines.len() == 0 || array.data().is_aligned()) else {
            return Err(value(
                "out",
                "its rows are not contiguous, overlap or are not aligned, and it is never copied",
            ));
        };
        // SAFETY: the array is alive, and Python's thread state attached.
        if unsafe { (*_PyArray_GET_ITEM_DATA(array.as_array_ptr())).flags } & NPY_ARRAY_WRITEABLE == 0 {
            return Err(value("out", "is read-only"));
        }
        let found = Self { object: object.clone(), array: array.clone(), lines };
        let (start, end) = (array.data().addr(), array.data().addr() + lines.len() * size_of::<T>());
        if inputs.iter().any(|input| input.start < end && start < input.end) {
            return Err(value("out", "its memory overlaps or interleaves with that of an operand"));
        }
        Ok(found)
    }

    /// The result as the library writes it.
    pub fn view(&mut self) -> MatMut<'_, T> {
        let data = match self.lines.len() {
            0 => &mut [][..],
            // SAFETY: numpy has these elements, or their bits, aligned and writable, for as long as the array lives, which `self` keeps alive; they are
            // those of no other operand. As for `Dense::view`, a race with another thread is one that numpy has, too.
            len => unsafe { std::slice::from_raw_parts_mut(self.array.data().cast::<T>(), len) },
        };
        MatMut::new(data, self.lines.rows, self.lines.cols, self.lines.stride).expect("lines fit their array")
    }

    /// Sets every element.
    pub fn fill(&mut self, x: T) {
        let mut view = self.view();
        (0..view.rows()).for_each(|i| view.reborrow().into_row(i).fill(x));
    }

    /// The elements of a result without gaps.
    pub fn slice(&mut self) -> PyResult<&mut [T]> {
        if self.lines.cols > 1 || self.lines.stride > 1 && self.lines.rows > 1 {
            return Err(value("out", "its elements are not contiguous, and it is never copied"));
        }
        Ok(self.view().into_data())
    }
}

/// Bytes from which results begin with a cache line: rows that do not cost the kernels 20 to 34 %.
const LARGE: usize = 4096;
/// Bytes of a cache line.
const LINE: usize = 64;

/// A new array; its elements are not set.
fn fresh<T: Entry>(
    py: Python<'_>,
    rows: usize,
    cols: usize,
    vector: bool,
) -> PyResult<Bound<'_, PyArrayDyn<T::Numpy>>> {
    let dims = if vector { &[rows][..] } else { &[rows, cols] };
    let len =
        rows.checked_mul(cols).filter(|&len| len.checked_mul(size_of::<T>()).is_some_and(|n| n < isize::MAX as usize));
    let len = len.ok_or_else(|| pyo3::exceptions::PyMemoryError::new_err(format!("{rows} x {cols} elements")))?;
    if len * size_of::<T>() < LARGE {
        return allocate::<T>(py, dims);
    }
    let room = allocate::<T>(py, &[len + LINE / size_of::<T>()])?;
    let first = room.data().wrapping_byte_add(room.data().align_offset(LINE) * size_of::<T>());
    // SAFETY: `room` has a line more than the `len` elements from `first` on; it becomes the base of the new array, so lives as long.
    unsafe {
        let lines = ArrayView2::from_shape_ptr((rows, cols), first.cast_const());
        if vector {
            let line = ArrayView2::from_shape_ptr((rows, 1), first.cast_const());
            let column = line.remove_axis(numpy::ndarray::Axis(1));
            return Ok(PyArray1::borrow_from_array(&column, room.into_any()).to_dyn().clone());
        }
        Ok(PyArray2::borrow_from_array(&lines, room.into_any()).to_dyn().clone())
    }
}

/// A new array by numpy's own allocator, which says when there is no memory.
fn allocate<'py, T: Entry>(py: Python<'py>, dims: &[usize]) -> PyResult<Bound<'py, PyArrayDyn<T::Numpy>>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    // Small ones cannot fail, and rust-numpy's way to them is the shorter one.
    if dims.iter().product::<usize>() * size_of::<T>() <= LARGE {
        // SAFETY: the kernels write every element and read none before.
        return Ok(unsafe { PyArray::new(py, dims, false) });
    }
    let empty = EMPTY.get_or_try_init(py, || py.import("numpy")?.getattr("empty").map(Bound::unbind))?.bind(py);
    let shape = pyo3::types::PyTuple::new(py, dims)?;
    Ok(empty.call1((shape, <T::Numpy as numpy::Element>::get_dtype(py)))?.cast_into()?)
}

/// An array whose elements are not set, aligned to a cache line where it is of 4 KiB or more: what `out` is best made with.
///
/// Parameters
/// ----------
/// shape : tuple of int
///     One or two lengths.
/// dtype : dtype, optional
///     ``float32`` or ``float64`` (default).
///
/// Returns
/// -------
/// numpy.ndarray
#[pyfunction]
#[pyo3(signature = (shape, dtype = None))]
pub fn empty<'py>(
    py: Python<'py>,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let lengths: Vec<i128> = match shape.extract::<i128>() {
        Ok(n) => vec![n],
        Err(_) => {
            shape.extract().map_err(|_| PyTypeError::new_err("shape: a number or a tuple of them is expected"))?
        }
    };
    let dims = lengths.into_iter().map(|length| count(length, "shape")).collect::<PyResult<Vec<_>>>()?;
    let (rows, cols, vector) = match dims[..] {
        [n] => (n, 1, true),
        [m, n] => (m, n, false),
        _ => return Err(value("shape", format!("{} lengths; one or two", dims.len()))),
    };
    let single = match dtype {
        None => false,
        Some(dtype) => is_single(py, dtype, "dtype")?,
    };
    Ok(if single {
        fresh::<f32>(py, rows, cols, vector)?.into_any()
    } else {
        fresh::<f64>(py, rows, cols, vector)?.into_any()
    })
}

/// Whether `dtype` is float32; an error unless it is that or float64.
pub fn is_single(py: Python<'_>, dtype: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    use numpy::{PyArrayDescr, PyArrayDescrMethods, dtype as descr};
    let given =
        PyArrayDescr::new(py, dtype).map_err(|error| PyTypeError::new_err(format!("{name}: {}", error.value(py))))?;
    if given.is_equiv_to(&descr::<f32>(py)) {
        return Ok(true);
    }
    if given.is_equiv_to(&descr::<f64>(py)) {
        return Ok(false);
    }
    Err(PyTypeError::new_err(format!("{name}: {given} is neither float32 nor float64")))
}

static OPERAND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static OUTPUT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static HALVES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static HALF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A type of 16 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Half {
    Bf16,
    F16,
}

impl Half {
    /// What numpy and its extensions call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => bf16::NUMPY,
            Self::F16 => f16::NUMPY,
        }
    }
}

/// The type of `x`, if it is an array or tensor of 16-bit floating-point numbers.
pub fn half_of(x: &Bound<'_, PyAny>) -> PyResult<Option<Half>> {
    // Types that numpy numbers before its half precision need no look at their names.
    if let Ok(array) = x.cast::<PyUntypedArray>()
        && array.dtype().num() < NPY_TYPES::NPY_HALF as i32
    {
        return Ok(None);
    }
    let name = helper(x.py(), &HALF, "half")?.call1((x,))?;
    Ok(match name.extract::<Option<&str>>()? {
        Some("bfloat16") => Some(Half::Bf16),
        Some(_) => Some(Half::F16),
        None => None,
    })
}

/// A function of `sparsimd._arrays`, looked up once.
pub fn helper<'a, 'py>(
    py: Python<'py>,
    cell: &'a PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'a Bound<'py, PyAny>> {
    let found = cell.get_or_try_init(py, || py.import("sparsimd._arrays")?.getattr(name).map(Bound::unbind))?;
    Ok(found.bind(py))
}

impl<'py, T: Value> Dense<'py, T> {
    /// The array.
    pub fn into_array(self) -> Bound<'py, PyArrayDyn<T>> {
        self.array
    }
}
