//! Matrices of faer, ndarray and sprs as ours and back, without a copy where the layouts allow it.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, array, s};
use sparsimd::{Cpu, Csr, CsrRef, Mat, MatMut, MatRef, Pattern, generate, reference};
use sprs::{CsMatI, CsMatViewI, TriMat};

/// Widths with and without padding between our rows, and nothing at all.
const SHAPES: [(usize, usize); 6] = [(3, 4), (5, 17), (4, 32), (1, 1), (0, 3), (3, 0)];

fn numbered(rows: usize, cols: usize) -> Mat<f32> {
    Mat::from_fn(rows, cols, |i, j| (100 * i + j) as f32).unwrap()
}

#[test]
fn ndarray_views_and_copies() {
    for (rows, cols) in SHAPES {
        let mut ours = numbered(rows, cols);
        let expected = Array2::from_shape_fn((rows, cols), |(i, j)| (100 * i + j) as f32);
        let view = ArrayView2::from(ours.as_ref());
        assert_eq!(view, expected);
        assert_eq!(view.as_ptr(), ours.as_ref().data().as_ptr());
        let back = MatRef::try_from(expected.view()).unwrap();
        assert_eq!((back.rows(), back.cols(), back.data().as_ptr()), (rows, cols, expected.as_ptr()));
        assert!(back.iter_rows().eq(ours.iter_rows()));
        assert!(Mat::try_from(expected.view()).unwrap().iter_rows().eq(ours.iter_rows()));
        ArrayViewMut2::from(ours.as_mut()).fill(7.0);
        assert!(ours.iter_rows().flatten().all(|&x| x == 7.0));
        let mut theirs = expected.clone();
        let mut ours = MatMut::try_from(theirs.view_mut()).unwrap();
        if rows > 0 && cols > 0 {
            ours[(rows - 1, cols - 1)] = -1.0;
            assert_eq!(theirs[(rows - 1, cols - 1)], -1.0);
        }
    }
    // A part of the columns, and columns first: not as a view, but as a copy.
    let theirs = array![[1.0f64, 2.0, 3.0], [4.0, 5.0, 6.0]];
    for view in [theirs.slice(s![.., ..2]), theirs.t()] {
        let error = MatRef::try_from(view).unwrap_err().to_string();
        assert!(error.contains("copy it into a Mat"), "{error}");
        let copy = Mat::try_from(view).unwrap();
        assert_eq!(ArrayView2::from(copy.as_ref()), view);
    }
    assert!(MatMut::try_from(theirs.clone().slice_mut(s![.., 1..])).is_err());
}

#[test]
fn faer_views_and_copies() {
    for (rows, cols) in SHAPES {
        let mut ours = numbered(rows, cols);
        let expected = faer::Mat::from_fn(rows, cols, |i, j| (100 * i + j) as f32);
        let view = faer::MatRef::from(ours.as_ref());
        assert_eq!(view, expected);
        assert_eq!(view.as_ptr(), ours.as_ref().data().as_ptr());
        // Theirs is by columns: a copy, or the transpose where it has no gaps.
        assert!(Mat::try_from(expected.as_ref()).unwrap().iter_rows().eq(ours.iter_rows()));
        let data: Vec<f32> = ours.iter_rows().flatten().copied().collect();
        let by_rows = faer::MatRef::from_row_major_slice(&data, rows, cols);
        let back = MatRef::try_from(by_rows).unwrap();
        assert!(back.iter_rows().eq(ours.iter_rows()));
        if rows > 0 && cols > 0 {
            assert_eq!(back.data().as_ptr(), data.as_ptr());
        }
        faer::MatMut::from(ours.as_mut()).fill(7.0);
        assert!(ours.iter_rows().flatten().all(|&x| x == 7.0));
        let mut data = data;
        let mut theirs = MatMut::try_from(faer::MatMut::from_row_major_slice_mut(&mut data, rows, cols)).unwrap();
        if rows > 0 && cols > 0 {
            theirs[(rows - 1, cols - 1)] = -1.0;
            assert_eq!(data[rows * cols - 1], -1.0);
        }
    }
    let mut theirs = faer::Mat::from_fn(3, 5, |i, j| (i + j) as f64);
    assert!(MatRef::try_from(theirs.as_ref()).is_err());
    assert!(MatRef::try_from(numbered_by_faer(8, 6).as_ref().subcols(0, 3).transpose()).is_ok());
    assert!(MatRef::try_from(numbered_by_faer(8, 6).as_ref().subrows(0, 3).transpose()).is_err());
    assert!(MatMut::try_from(theirs.as_mut()).is_err());
}

/// As many rows as faer does not pad.
fn numbered_by_faer(rows: usize, cols: usize) -> faer::Mat<f64> {
    let made = faer::Mat::from_fn(rows, cols, |i, j| (i + j) as f64);
    assert_eq!(made.col_stride(), rows as isize);
    made
}

#[test]
fn sprs_views_and_copies() {
    let ours = generate::random_matrix::<f64>(40, 30, 0.8, 3).unwrap();
    let view = CsMatViewI::try_from(&ours).unwrap();
    assert_eq!((view.shape(), view.nnz()), ((40, 30), ours.nnz()));
    assert_eq!(view.indices().as_ptr(), ours.pattern().col_idx().as_ptr());
    let back = CsrRef::try_from(view).unwrap();
    assert_eq!(back.values().as_ptr(), ours.values().as_ptr());
    assert_eq!(back.to_csr(), ours);

    // Their own index type, and one of each that is taken without a copy.
    let mut triplets = TriMat::new((3, 4));
    [(0, 1, 2.0f32), (0, 3, 3.0), (2, 0, 4.0)].iter().for_each(|&(i, j, x)| triplets.add_triplet(i, j, x));
    let theirs = triplets.to_csr::<usize>();
    let copied = Csr::try_from(theirs.view()).unwrap();
    let narrow: CsMatI<f32, i32, i64> = CsMatI::new((3, 4), vec![0, 2, 2, 3], vec![1, 3, 0], vec![2.0, 3.0, 4.0]);
    let borrowed = CsrRef::try_from(narrow.view()).unwrap();
    assert_eq!(borrowed.to_csr(), copied);
    let b = generate::uniform_dense::<f32>(4, 9, 1).unwrap();
    let mut c = Mat::zeros(3, 9).unwrap();
    let expected = reference::spmm(1.0, &copied, b.as_ref(), 0.0, c.as_ref()).unwrap();
    Cpu::new().unwrap().spmm(1.0, borrowed, b.as_ref(), 0.0, c.as_mut()).unwrap();
    assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0);

    let by_columns = triplets.to_csc::<usize>();
    assert!(Csr::try_from(by_columns.view()).unwrap_err().to_string().contains("by columns"));
    assert!(CsrRef::try_from(narrow.to_csc().view()).unwrap_err().to_string().contains("by columns"));
    let unsorted = Csr::new(Pattern::new(1, 3, vec![0, 2], vec![2, 0]).unwrap(), vec![1.0f32, 2.0]).unwrap();
    assert!(CsMatViewI::try_from(&unsorted).is_err());
    // Some rows of a matrix of theirs count their pointers from the whole.
    let rows = narrow.slice_outer(2..3);
    assert_eq!(Csr::try_from(rows.view()).unwrap().values(), [4.0]);
}
