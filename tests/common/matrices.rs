//! Sparse and dense operands of every awkward shape, and the executors and paths to run them on.

use sparsimd::machine::Machine;
use sparsimd::ops::SparseOperand;
use sparsimd::plan::{Op, Plan, PlanOptions, Strategy};
use sparsimd::reference::Expected;
use sparsimd::{Arch, Cpu, Csr, Mat, MatMut, MatRef, Number, Pattern, Prepared, Scalar, Stored, generate};

/// Widths of the dense operands: around one, two and more registers of every instruction set, and around whole tiles.
pub const WIDTHS: [usize; 15] = [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 100, 128, 130, 256, 257];

/// Both paths.
pub const STRATEGIES: [Strategy; 2] = [Strategy::Direct, Strategy::Panel];

/// One executor per instruction set and number of threads; more threads than rows in many cases.
pub fn executors() -> Vec<Cpu> {
    executors_of(&Machine::detect())
}

/// Likewise, on a machine whose last cache the dense operands outgrow, so that results are written past it.
pub fn executors_with_small_caches() -> Vec<Cpu> {
    executors_of(&Machine::describe("l3:1(size=64KB) core:4").unwrap())
}

fn executors_of(machine: &Machine) -> Vec<Cpu> {
    let build =
        |arch, threads| Cpu::builder().machine(machine.clone()).arch(arch).threads(threads).pin(false).build().unwrap();
    Arch::available().into_iter().flat_map(|arch| [build(arch, 1), build(arch, 3)]).collect()
}

/// Sparse matrices with rows of every kind: short, empty, and so long that tasks share them.
pub fn sparse_rows<T: Scalar>() -> Vec<Csr<T>> {
    let kinds = ["empty rows", "one giant row", "many blocks"];
    let some = shapes().into_iter().filter(|(name, _)| kinds.contains(name)).map(|(_, a)| a);
    let all: Vec<_> = some.chain([skewed()]).collect();
    assert_eq!(all.len(), kinds.len() + 1);
    all
}

/// `op` on `a`, prepared for `path`.
pub fn prepare<V: Stored>(cpu: &Cpu, op: Op, a: &Csr<V>, n: usize, path: Strategy) -> Prepared<V::Scalar> {
    let prepared = cpu.prepare(SparseOperand::of(a), &PlanOptions::new(op, n).strategy(path).reuse(1000)).unwrap();
    assert_eq!(prepared.plan().strategy(), path);
    prepared
}

/// Calls `check(cpu, operand, words)` for `a` as it is and prepared for each path, on every executor; `words` say which.
pub fn on_every_path<V: Stored>(
    cpus: &[Cpu],
    op: Op,
    a: &Csr<V>,
    n: usize,
    mut check: impl FnMut(&Cpu, SparseOperand<'_, V::Scalar>, &str),
) {
    for cpu in cpus {
        let words = |how: &str| format!("values of {}, {}, {how}", V::DTYPE, cpu.arch().name());
        check(cpu, SparseOperand::of(a), &words("unprepared"));
        let slices = n == 1 && matches!(op, Op::Spmm | Op::SpmmTransposed);
        for path in STRATEGIES.into_iter().chain(slices.then_some(Strategy::Slices)) {
            check(cpu, (&prepare(cpu, op, a, n, path)).into(), &words(&format!("{path:?}")));
        }
    }
}

/// The dense `result` is within the bound of what is expected, and nothing was written between its rows.
pub fn assert_dense<D: Stored>(expected: &Expected, result: &Strided<D>, case: impl Fn() -> String) {
    let worst = expected.deviation(result.view()).unwrap();
    assert!(worst.error <= 1.0, "{}: {worst:?}", case());
    assert!(result.gaps_untouched(), "{}: wrote between the rows", case());
}

/// A matrix from its rows of columns; values from a seed.
pub fn from_rows<T: Scalar>(cols: usize, rows: &[Vec<u32>]) -> Csr<T> {
    let mut row_ptr = vec![0];
    row_ptr.extend(rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let pattern = Pattern::new(rows.len(), cols, row_ptr, rows.concat()).unwrap();
    let values = generate::uniform_values(pattern.nnz(), 77);
    Csr::new(pattern, values).unwrap()
}

/// 200 x 3000, skewed: one row holds a third of all nonzeros, so that it is split over the threads.
pub fn skewed<T: Scalar>() -> Csr<T> {
    let mut rows: Vec<Vec<u32>> = (0..200).map(|i| (0..3000).step_by(37 + i).collect()).collect();
    rows[11] = (0..3000).collect();
    from_rows(3000, &rows)
}

/// 100 x 40000 with one full row: more nonzeros than a task of narrow values takes, in that row and in others.
pub fn pieces<V: Stored>() -> Csr<V> {
    let mut rows: Vec<Vec<u32>> = (0..100).map(|i| (i..40_000).step_by(131 + i as usize).collect()).collect();
    rows[70] = (0..40_000).collect();
    from_rows::<V::Scalar>(40_000, &rows).stored_as()
}

/// The same matrix with the columns of each row in another order.
pub fn unsorted<T: Scalar>(a: &Csr<T>) -> Csr<T> {
    let pattern = a.pattern();
    let rows: Vec<Vec<u32>> = (0..a.rows())
        .map(|i| {
            let mut row = pattern.row(i).to_vec();
            row.sort_by_key(|j| j.wrapping_mul(0x9e37_79b1));
            row
        })
        .collect();
    from_rows(a.cols(), &rows)
}

/// Matrices of every awkward shape, by name.
pub fn shapes<T: Scalar>() -> Vec<(&'static str, Csr<T>)> {
    let random = |rows, cols, sparsity| generate::random_matrix::<T>(rows, cols, sparsity, 5).unwrap();
    let every_third: Vec<Vec<u32>> =
        (0..50).map(|i| if i % 3 == 1 { (0..40).step_by(1 + i % 4).collect() } else { vec![] }).collect();
    let mut giant: Vec<Vec<u32>> = (0..40).map(|i| if i % 2 == 0 { vec![i * 37] } else { vec![] }).collect();
    giant[21] = (0..1500).collect();
    // Few rows that the first panel of columns does not have, or the last one, or neither.
    let mut absent: Vec<Vec<u32>> = (0..40).map(|i| (i % 7..700).step_by(7).collect()).collect();
    absent[3] = (300..700).step_by(5).collect();
    absent[14] = (0..400).step_by(5).collect();
    absent[25] = vec![];
    absent[39] = (300..400).step_by(9).collect();
    vec![
        ("0 x 0", random(0, 0, 0.5)),
        ("0 x 5", random(0, 5, 0.5)),
        ("5 x 0", random(5, 0, 0.5)),
        ("all zero", random(7, 9, 1.0)),
        ("1 x 1", random(1, 1, 0.0)),
        ("one row", random(1, 300, 0.5)),
        ("one column", random(300, 1, 0.5)),
        ("empty rows", from_rows(40, &every_third)),
        ("one giant row", from_rows(1500, &giant)),
        ("rows absent from panels", from_rows(700, &absent)),
        ("full", random(33, 47, 0.0)),
        ("unsorted columns", unsorted(&random(65, 129, 0.6))),
        ("many panels", random(70, 600, 0.8)),
        ("many blocks", random(2300, 60, 0.9)),
    ]
}

/// A dense matrix in a longer slice, rows an odd number of elements apart and unaligned, NaN between the rows and
/// around them: reading there would show.
pub struct Strided<T> {
    data: Vec<T>,
    rows: usize,
    cols: usize,
}

/// Elements between the end of a row and the start of the next one.
const GAP: usize = 3;

impl<D: Stored> Strided<D> {
    /// Uniform numbers.
    pub fn random(rows: usize, cols: usize, seed: u64) -> Self {
        let values = generate::uniform_values::<D>(rows * cols, seed);
        let mut out =
            Self { data: vec![D::narrow(D::Scalar::from_f64(f64::NAN)); 1 + rows * (cols + GAP)], rows, cols };
        for i in 0..rows {
            out.data[1 + i * (cols + GAP)..][..cols].copy_from_slice(&values[i * cols..][..cols]);
        }
        out
    }

    /// NaN everywhere.
    pub fn nan(rows: usize, cols: usize) -> Self {
        Self { data: vec![D::narrow(D::Scalar::from_f64(f64::NAN)); 1 + rows * (cols + GAP)], rows, cols }
    }

    pub fn view(&self) -> MatRef<'_, D> {
        MatRef::new(&self.data[1..], self.rows, self.cols, self.cols + GAP).unwrap()
    }

    pub fn view_mut(&mut self) -> MatMut<'_, D> {
        MatMut::new(&mut self.data[1..], self.rows, self.cols, self.cols + GAP).unwrap()
    }

    /// Whether what lies between the rows is still as it was.
    pub fn gaps_untouched(&self) -> bool {
        let is_nan = |x: &D| x.widen().to_f64().is_nan();
        is_nan(&self.data[0])
            && (0..self.rows).all(|i| self.data[1 + i * (self.cols + GAP)..][self.cols..][..GAP].iter().all(is_nan))
    }
}

/// An aligned matrix of uniform numbers.
pub fn aligned<D: Stored>(rows: usize, cols: usize, seed: u64) -> Mat<D> {
    generate::uniform_dense(rows, cols, seed).unwrap()
}

/// The bits of every element, to compare runs.
pub fn bits<D: Stored>(c: MatRef<'_, D>) -> Vec<u64> {
    (0..c.rows()).flat_map(|i| c.row(i)).map(|x| x.widen().to_f64().to_bits()).collect()
}

/// Whether the direct plan of `prepared` writes results past the caches.
pub fn streams<T: Scalar>(prepared: &Prepared<T>) -> bool {
    matches!(prepared.plan(), Plan::Direct(plan) if plan.streams())
}
