//! SpMM with one column from slices of rows, on every instruction set, element type and kind of row: c = alpha A b + beta c.

mod common;

use common::matrices::{Strided, aligned, assert_dense, bits, executors, from_rows, prepare, shapes, skewed, unsorted};
use sparsimd::plan::{Op, Plan, PlanOptions, Stats, Strategy, Target};
use sparsimd::{Cpu, Csr, Machine, Mat, MatMut, MatRef, Number, Scalar, Stored, bf16, f16, generate, reference};

/// (alpha, beta): beta = 0 must not read C, alpha = 0 not A and B.
const FACTORS: [(f64, f64); 5] = [(1.0, 0.0), (1.0, 1.0), (-0.75, 0.0), (0.5, -2.0), (0.0, 2.0)];

/// A band of `width` columns below `cols` in each of `rows` rows, as far as it is inside.
fn band(rows: u32, cols: u32, width: u32) -> Vec<Vec<u32>> {
    (0..rows).map(|i| (i.saturating_sub(width / 2)..(i + width.div_ceil(2)).min(cols)).collect()).collect()
}

/// Rows of every kind that slices tell apart.
fn kinds<T: Scalar>() -> Vec<(String, Csr<T>)> {
    let mut all: Vec<(String, Csr<T>)> = shapes().into_iter().map(|(name, a)| (name.to_owned(), a)).collect();
    // Around one and two slices of both types: all rows of one length, in runs and not, and lengths that fall and rise.
    for rows in [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100] {
        let scattered = (0..rows).map(|i| (0..5).map(|k| (i * 37 + k * 211) % 1009).collect()).collect::<Vec<_>>();
        let lengths = (0..rows).map(|i| (0..(i * 7) % 12).map(|k| (i * 3 + k * 5) % 101).collect()).collect::<Vec<_>>();
        all.push((format!("{rows} rows of five"), from_rows(1009, &scattered)));
        all.push((format!("{rows} rows of many lengths"), from_rows(101, &lengths)));
        for cols in [rows, rows + 40] {
            all.push((format!("band of {rows} rows, {cols} columns"), from_rows(cols as usize, &band(rows, cols, 7))));
        }
    }
    // A stencil with gaps in its diagonals, as at the ends of a grid's rows.
    let grid = 23;
    let stencil = |i: u32| {
        let mut row = vec![i];
        row.extend((!i.is_multiple_of(grid)).then(|| i - 1));
        row.extend((i % grid + 1 < grid).then_some(i + 1));
        row.extend(i.checked_sub(grid));
        row.extend((i + grid < grid * grid).then_some(i + grid));
        row.sort_unstable();
        row
    };
    let stencil: Csr<T> = from_rows((grid * grid) as usize, &(0..grid * grid).map(stencil).collect::<Vec<_>>());
    all.push(("unsorted stencil".to_owned(), unsorted(&stencil)));
    all.push(("stencil".to_owned(), stencil));
    all.push(("skewed".to_owned(), skewed()));
    // More rows than are sorted together, some of them long.
    let long = |i: u32| (0..if i % 1000 == 5 { 400 } else { i % 4 }).map(|k| (i * 17 + k * 3) % 1601).collect();
    all.push(("blocks".to_owned(), from_rows(1601, &(0..20_000).map(long).collect::<Vec<_>>())));
    all
}

/// One column of elements that follow each other, in memory that begins at an odd element.
fn dense<D: Stored>(data: &[D]) -> MatRef<'_, D> {
    MatRef::new(&data[1..], data.len() - 1, 1, 1).unwrap()
}

fn check<D: Stored, V: Stored<Scalar = D::Scalar>>() {
    let cpus = executors();
    for (at, (kind, a)) in kinds::<D::Scalar>().into_iter().enumerate() {
        let a = a.stored_as::<V>();
        for transposed in [false, true] {
            let (m, k) = if transposed { (a.cols(), a.rows()) } else { (a.rows(), a.cols()) };
            let op = if transposed { Op::SpmmTransposed } else { Op::Spmm };
            let (alpha, beta) = FACTORS[(at + usize::from(transposed)) % FACTORS.len()];
            let (alpha, beta) = (D::Scalar::from_f64(alpha), D::Scalar::from_f64(beta));
            let b = generate::uniform_values::<D>(1 + k, 1);
            let b = dense(&b);
            // C together, whose rows are stored by registers, and apart.
            let start = || if beta == D::Scalar::ZERO { Strided::<D>::nan(m, 1) } else { Strided::random(m, 1, 2) };
            let before = start();
            let exact = &a.stored_as::<D::Scalar>();
            let expected = if transposed {
                reference::spmm_t(alpha, exact, b, beta, before.view())
            } else {
                reference::spmm(alpha, exact, b, beta, before.view())
            }
            .unwrap();
            for (number, cpu) in cpus.iter().enumerate() {
                // Slices are the same for all instruction sets.
                let prepared = prepare(&cpus[(number + 2) % cpus.len()], op, &a, 1, Strategy::Slices);
                let words = || format!("{}, {}, {kind}, {op:?}, {alpha} {beta}", D::DTYPE, cpu.arch().name());
                let run = |c: MatMut<'_, D>| match transposed {
                    false => cpu.spmm(alpha, &prepared, b, beta, c).unwrap(),
                    true => cpu.spmm_t(alpha, &prepared, b, beta, c).unwrap(),
                };
                let mut c = start();
                run(c.view_mut());
                assert_dense(&expected, &c, words);
                let mut c: Vec<D> = (0..m).map(|i| before.view().row(i)[0]).collect();
                run(MatMut::new(&mut c, m, 1, 1).unwrap());
                let worst = expected.deviation(MatRef::new(&c, m, 1, 1).unwrap()).unwrap();
                assert!(worst.error <= 1.0, "{}, together: {worst:?}", words());
            }
        }
    }
}

#[test]
fn f32_matches_the_reference() {
    check::<f32, f32>();
}

#[test]
fn f64_matches_the_reference() {
    check::<f64, f64>();
}

#[test]
fn narrow_elements_match_the_reference() {
    check::<bf16, f32>();
    check::<f16, f16>();
}

/// What is not a number in B reaches the rows that have a nonzero there, and no others, though rows are filled up with other columns.
#[test]
fn nan_and_infinity_reach_their_rows_alone() {
    fn check<D: Stored>() {
        for (kind, a) in kinds::<D::Scalar>() {
            for (bad, at) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().zip([0, a.cols() / 2, a.cols()]) {
                let mut b = generate::uniform_values::<D>(1 + a.cols(), 1);
                b[at] = D::narrow(D::Scalar::from_f64(bad));
                if let Some(last) = b.last_mut().filter(|_| at == 0) {
                    *last = D::narrow(D::Scalar::from_f64(bad));
                }
                for beta in [D::Scalar::ZERO, D::Scalar::ONE] {
                    let before = aligned::<D>(a.rows(), 1, 2);
                    let expected = reference::spmm(D::Scalar::ONE, &a, dense(&b), beta, before.as_ref()).unwrap();
                    for cpu in executors() {
                        let prepared = prepare(&cpu, Op::Spmm, &a, 1, Strategy::Slices);
                        let mut c = before.clone();
                        cpu.spmm(D::Scalar::ONE, &prepared, dense(&b), beta, c.as_mut()).unwrap();
                        let worst = expected.deviation(c.as_ref()).unwrap();
                        let words =
                            || format!("{}, {}, {kind}, {bad} at {at}, beta {beta}", D::DTYPE, cpu.arch().name());
                        assert!(worst.error <= 1.0, "{}: {worst:?}", words());
                        // The bound says nothing of rows that are not finite.
                        for (i, (got, wanted)) in
                            (0..a.rows()).map(|i| (c.row(i)[0], &expected.values()[i])).enumerate()
                        {
                            assert_eq!(got.widen().to_f64().is_nan(), wanted.is_nan(), "{}, row {i}", words());
                        }
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<f16>();
}

/// Sums that have no room in f16 are infinity, as they are straight from CSR, and take no row along.
#[test]
fn sums_beyond_f16_are_infinite() {
    for (kind, a) in kinds::<f32>() {
        let large = a.values().iter().enumerate().map(|(p, x)| if p % 3 == 0 { x * 1e6 } else { *x }).collect();
        let a = Csr::new(a.pattern().clone(), large).unwrap();
        let b = aligned::<f16>(a.cols(), 1, 1);
        let expected =
            reference::spmm(1.0, &a, b.as_ref(), 0.0, Mat::<f16>::zeros(a.rows(), 1).unwrap().as_ref()).unwrap();
        for cpu in executors() {
            let mut c = Mat::<f16>::zeros(a.rows(), 1).unwrap();
            cpu.spmm(1.0, &prepare(&cpu, Op::Spmm, &a, 1, Strategy::Slices), b.as_ref(), 0.0, c.as_mut()).unwrap();
            for (i, &wanted) in expected.values().iter().enumerate() {
                let got = c.row(i)[0].to_f64();
                let right = if wanted.abs() > 65520.0 * 1.01 {
                    got == f64::INFINITY.copysign(wanted)
                } else {
                    wanted.abs() > 65520.0 * 0.99 || (got - wanted).abs() <= 0.01 * (1.0 + wanted.abs())
                };
                assert!(right, "{}, {kind}, row {i}: {got}, {wanted}", cpu.arch().name());
            }
        }
    }
}

#[test]
fn the_same_bits_every_time_and_for_all_operands_prepared_alike() {
    let cpu = Cpu::builder().threads(3).pin(false).build().unwrap();
    for (kind, a) in kinds::<f32>() {
        let b = aligned::<f32>(a.cols(), 1, 1);
        let run = |prepared| {
            let mut c = Mat::zeros(a.rows(), 1).unwrap();
            cpu.spmm(1.0, prepared, b.as_ref(), 0.0, c.as_mut()).unwrap();
            bits(c.as_ref())
        };
        let prepared = prepare(&cpu, Op::Spmm, &a, 1, Strategy::Slices);
        let first = run(&prepared);
        assert!((0..10).all(|_| run(&prepared) == first), "{kind}");
        assert_eq!(run(&prepare(&cpu, Op::Spmm, &a, 1, Strategy::Slices)), first, "{kind}");
    }
}

#[test]
fn new_values_and_other_operations_on_slices() {
    let cpu = Cpu::builder().threads(2).pin(false).build().unwrap();
    for (kind, a) in kinds::<f64>() {
        for op in [Op::Spmm, Op::SpmmTransposed] {
            let mut prepared = prepare(&cpu, op, &a, 1, Strategy::Slices);
            let changed = Csr::new(a.pattern().clone(), generate::uniform_values(a.nnz(), 99)).unwrap();
            prepared.set_values(&cpu, changed.values()).unwrap();
            // One column, and more than were announced.
            for n in [1, 3, 17] {
                let transposed = op == Op::SpmmTransposed;
                let (m, k) = if transposed { (a.cols(), a.rows()) } else { (a.rows(), a.cols()) };
                let (b, mut c) = (aligned::<f64>(k, n, 1), Mat::zeros(m, n).unwrap());
                let expected = if transposed {
                    cpu.spmm_t(1.0, &prepared, b.as_ref(), 0.0, c.as_mut()).unwrap();
                    reference::spmm_t(1.0, &changed, b.as_ref(), 0.0, c.as_ref()).unwrap()
                } else {
                    cpu.spmm(1.0, &prepared, b.as_ref(), 0.0, c.as_mut()).unwrap();
                    reference::spmm(1.0, &changed, b.as_ref(), 0.0, c.as_ref()).unwrap()
                };
                assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0, "{kind}, {op:?}, N = {n}");
            }
            assert!(prepared.set_values(&cpu, &vec![0.0; a.nnz() + 1]).is_err());
        }
    }
}

/// Slices are chosen for one column of SpMM that runs often, where no row holds the threads up, and asked for elsewhere give a direct plan.
#[test]
fn when_slices_are_planned() {
    let machine = Machine::detect();
    let target = Target { threads: 2, vector_bytes: 64, registers: 32, value_bytes: 4 };
    let stats = |a: &Csr<f32>| Stats::of(&**a.pattern());
    let choose = |a: &Csr<f32>, options: PlanOptions, target: &Target| {
        Plan::choose(&stats(a), &machine, &options, target).unwrap().strategy()
    };
    let a = from_rows::<f32>(1000, &band(1000, 1000, 5));
    let one = PlanOptions::new(Op::Spmm, 1);
    assert_eq!(choose(&a, one, &target), Strategy::Slices);
    assert_eq!(choose(&a, PlanOptions::new(Op::SpmmTransposed, 1), &target), Strategy::Slices);
    assert_eq!(choose(&a, one.reuse(3), &target), Strategy::Direct);
    assert_eq!(choose(&a, one.strategy(Strategy::Direct), &target), Strategy::Direct);
    assert_eq!(choose(&a, one, &Target { vector_bytes: 8, ..target }), Strategy::Direct);
    assert_eq!(choose(&skewed(), one, &target), Strategy::Direct);
    assert_eq!(choose(&skewed(), one, &Target { threads: 1, ..target }), Strategy::Slices);
    for (op, n) in [(Op::Spmm, 2), (Op::Sddmm, 1), (Op::FusedMm, 1)] {
        assert_eq!(choose(&a, PlanOptions::new(op, n).strategy(Strategy::Slices), &target), Strategy::Direct);
    }
    let cpu = Cpu::builder().threads(1).build().unwrap();
    let slices = |a: &Csr<f32>| prepare(&cpu, Op::Spmm, a, 1, Strategy::Slices).slices().cloned().unwrap();
    // The rows at both ends are short, of a band; the others are runs.
    assert!(slices(&a).in_runs() > 0.9 && slices(&a).len() < a.nnz() * 11 / 10);
    // A row that all others would be filled up to is left out.
    assert!(slices(&skewed()).len() < skewed::<f32>().nnz());
}
