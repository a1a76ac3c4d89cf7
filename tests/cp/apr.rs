//! CP-APR: Poisson regression of counts.

use sparsimd::Arch;
use sparsimd::decomp::CpIteration;

use super::*;

/// Counts by a formula, one slice of mode 0 empty, and a start: what the figures of pyttb below were computed from.
fn counts<T: Scalar>() -> (CooTensor<T>, Vec<Mat<T>>) {
    let dims = vec![6, 5, 4, 3];
    let (mut coords, mut values) = (vec![Vec::new(); 4], Vec::new());
    for p in 0..360usize {
        let c = [p / 60, p / 12 % 5, p / 3 % 4, p % 3];
        let value = (7 * c[0] * c[0] + 5 * c[1] * c[2] + 3 * c[2] + 11 * c[3] + c[0] * c[1] * c[3]) % 13;
        if c[0] != 4 && value > 7 {
            coords.iter_mut().zip(c).for_each(|(coords, c)| coords.push(c as u32));
            values.push(T::from_f64(value as f64));
        }
    }
    let element = |m: usize, i: usize, r: usize| ((3 * i + 5 * r + 2 * m + i * r) % 7 + 1) as f64 / 8.0;
    let factor = |(m, &dim): (usize, &usize)| Mat::from_fn(dim, 3, |i, r| T::from_f64(element(m, i, r))).unwrap();
    let start = dims.iter().enumerate().map(factor).collect();
    (CooTensor::new(dims, coords, values).unwrap(), start)
}

fn regress<T: Scalar>(cpu: &Cpu, coo: &CooTensor<T>, options: &CpOptions<T>) -> (CpState<T>, Vec<CpIteration>) {
    let mut iterations = Vec::new();
    let state = cpu.cp_apr(coo, options, |_, iteration| {
        iterations.push(*iteration);
        ControlFlow::Continue(())
    });
    (state.unwrap(), iterations)
}

fn from<T: Scalar>(start: Vec<Mat<T>>, iterations: usize, tolerance: f64) -> CpOptions<T> {
    let rank = start[0].cols();
    CpOptions { iterations, tolerance, init: CpInit::Factors(start), ..CpOptions::new(rank) }
}

fn close(got: f64, expected: f64, tolerance: f64) -> bool {
    (got - expected).abs() <= tolerance * expected.abs().max(1.0)
}

/// `pyttb.cp_apr(X, 3, init=ktensor(U), maxiters=3, stoptol=1e-4)`, pyttb 1.8.6.
#[test]
fn agrees_with_pyttb_from_the_same_start() {
    let (coo, start) = counts::<f64>();
    assert_eq!((coo.nnz(), coo.values().iter().sum::<f64>()), (112, 1116.0));
    let (state, iterations) = regress(&cpu(), &coo, &from(start.clone(), 3, 1e-4));
    let violations = [0.3316620303455583, 0.19198863102135166, 0.19057489101042535];
    for (iteration, violation) in iterations.iter().zip(violations) {
        assert!(close(iteration.violation.unwrap(), violation, 1e-9), "{iteration:?}");
    }
    assert!(close(-iterations[0].objective, 441.768117255926, 1e-9), "{:?}", iterations[0]);
    assert!(close(-iterations[2].objective, 503.56815062642636, 1e-9), "{:?}", iterations[2]);
    assert!(close(state.fit(), 0.25401483390525137, 1e-9), "{}", state.fit());
    // pyttb orders components by their weights, which it leaves in the factor of mode 0.
    let mut order = [0, 1, 2];
    order.sort_by(|&r, &s| state.lambda[s].total_cmp(&state.lambda[r]));
    let first = [
        [174.006918483768, 0.71006857158542, 90.42326539759709],
        [65.50855298683362, 107.01205405709489, 0.1838307802207896],
        [18.626320477620265, 103.70020351109414, 67.10896890525841],
        [155.40329807045265, 0.9343229454185599, 100.01822966635675],
        [0.0, 0.0, 0.0],
        [96.03310833678613, 108.89011275988572, 27.440745050027687],
    ];
    let last = [
        [0.2280969592353135, 0.42269552361242635, 0.2874627257464595],
        [0.33811013762308295, 0.2822890342778448, 0.3682720869681777],
        [0.43379290314160357, 0.29501544210972896, 0.34426518728536276],
    ];
    for (k, &r) in order.iter().enumerate() {
        for (i, row) in first.iter().enumerate() {
            assert!(close(state.factors[0].row(i)[r] * state.lambda[r], row[k], 1e-8), "{i}, {r}");
        }
        for (i, row) in last.iter().enumerate() {
            assert!(close(state.factors[3].row(i)[r], row[k], 1e-9), "{i}, {r}");
        }
    }
    // To the end: pyttb's log-likelihood is 545.0951, by a slightly different rule for zeros.
    let (state, iterations) = regress(&cpu(), &coo, &from(start, 2000, 1e-4));
    let last = iterations.last().unwrap();
    assert!(last.violation.unwrap() < 1e-4 && state.fits.len() < 2000, "{last:?}");
    assert!(close(-last.objective, 545.0951, 1e-3), "{last:?}");
}

/// The likeliest model of one component is the product of the sums over all slices.
#[test]
fn one_component_is_the_product_of_the_marginals() {
    let cpu = cpu();
    for dims in [vec![9, 7], vec![30, 1, 25], vec![8, 9, 7, 10]] {
        let counts = skewed::<f64>(&dims, dims.iter().product::<usize>() / 3, 5).unwrap();
        let values = counts.values().iter().enumerate().map(|(p, _)| (p % 5 + 1) as f64).collect();
        let coo = counts.with_values(values).unwrap();
        let total: f64 = coo.values().iter().sum();
        let options = CpOptions { iterations: 20, tolerance: 1e-12, ..CpOptions::new(1) };
        let (state, _) = regress(&cpu, &coo, &options);
        assert!(close(state.lambda[0], total, 1e-12), "{} {total}", state.lambda[0]);
        for (mode, factor) in state.factors.iter().enumerate() {
            let mut sums = vec![0.0; dims[mode]];
            coo.coords(mode).iter().zip(coo.values()).for_each(|(&i, x)| sums[i as usize] += x);
            for (i, sum) in sums.iter().enumerate() {
                assert!((factor.row(i)[0] - sum / total).abs() < 1e-12, "{dims:?}, mode {mode}, {i}");
            }
        }
    }
}

/// The algorithm by naive loops in double precision, without the rule for zeros: factors and weights.
fn naive(coo: &CooTensor<f64>, start: &[Mat<f64>], iterations: usize) -> (Vec<Mat<f64>>, Vec<f64>) {
    let (order, rank) = (coo.order(), start[0].cols());
    let mut factors = start.to_vec();
    let mut lambda = vec![1.0; rank];
    let normalise = |f: &mut Mat<f64>, lambda: &mut [f64]| {
        for r in 0..rank {
            let sum: f64 = f.iter_rows().map(|row| row[r]).sum();
            lambda[r] *= sum;
            f.iter_rows_mut().for_each(|row| row[r] *= if sum > 0.0 { 1.0 / sum } else { 0.0 });
        }
    };
    factors.iter_mut().for_each(|f| normalise(f, &mut lambda));
    for _ in 0..iterations {
        for mode in 0..order {
            factors[mode].iter_rows_mut().for_each(|row| row.iter_mut().zip(&lambda).for_each(|(x, l)| *x *= l));
            for _ in 0..10 {
                let mut phi = Mat::<f64>::zeros(coo.dims()[mode], rank).unwrap();
                for p in 0..coo.nnz() {
                    let at = |m: usize| coo.coords(m)[p] as usize;
                    let pi =
                        |r: usize| (0..order).filter(|&m| m != mode).map(|m| factors[m].row(at(m))[r]).product::<f64>();
                    let own = factors[mode].row(at(mode));
                    let model: f64 = (0..rank).map(|r| own[r] * pi(r)).sum();
                    (0..rank).for_each(|r| phi.row_mut(at(mode))[r] += coo.values()[p] / model.max(1e-10) * pi(r));
                }
                for i in 0..phi.rows() {
                    factors[mode].row_mut(i).iter_mut().zip(phi.row(i)).for_each(|(b, phi)| *b *= phi);
                }
            }
            lambda.fill(1.0);
            normalise(&mut factors[mode], &mut lambda);
        }
    }
    (factors, lambda)
}

#[test]
fn agrees_with_naive_loops_for_every_shape_and_instruction_set() {
    let shapes: [&[usize]; 6] = [&[7, 9], &[1, 12, 5], &[6, 1, 1, 4], &[4, 3, 5, 2, 3], &[3, 400, 30], &[17, 16, 15]];
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(2).arch(arch).pin(false).build().unwrap();
        for dims in shapes {
            let nnz = (dims.iter().product::<usize>() / 2).min(1500);
            let coo = skewed::<f64>(dims, nnz, 8).unwrap();
            let coo = coo.with_values((0..coo.nnz()).map(|p| (p % 7 + 1) as f64).collect()).unwrap();
            for rank in [1, 5, 8, 17] {
                let factor = |(m, &dim): (usize, &usize)| {
                    let uniform = uniform_dense::<f64>(dim, rank, m as u64).unwrap();
                    Mat::from_fn(dim, rank, |i, r| uniform.row(i)[r] + 0.6).unwrap()
                };
                let start: Vec<Mat<f64>> = dims.iter().enumerate().map(factor).collect();
                let (expected, weights) = naive(&coo, &start, 1);
                let compare = |state: &CpState<f64>, tolerance: f64| {
                    for (mode, factor) in state.factors.iter().enumerate() {
                        for i in 0..dims[mode] {
                            for r in 0..rank {
                                let (got, wanted) = (factor.row(i)[r], expected[mode].row(i)[r]);
                                assert!(
                                    (got - wanted).abs() < tolerance,
                                    "{dims:?}, R {rank}, {arch:?}, {mode} {i} {r}"
                                );
                            }
                        }
                    }
                    state
                        .lambda
                        .iter()
                        .zip(&weights)
                        .for_each(|(got, wanted)| assert!(close(*got, *wanted, tolerance)));
                };
                compare(&regress(&cpu, &coo, &from(start.clone(), 1, 0.0)).0, 1e-9);
                let single = start.iter().map(|f| Mat::from_fn(f.rows(), rank, |i, r| f.row(i)[r] as f32).unwrap());
                let (state, _) = regress(&cpu, &coo.cast::<f32>(), &from(single.collect(), 1, 0.0));
                let wide = |f: &Mat<f32>| Mat::from_fn(f.rows(), rank, |i, r| f64::from(f.row(i)[r])).unwrap();
                let CpState { factors, lambda, fits, memory } = state;
                compare(&CpState { factors: factors.iter().map(wide).collect(), lambda, fits, memory }, 2e-3);
            }
        }
    }
}

#[test]
fn the_likelihood_never_decreases_and_the_model_has_the_slices_sums() {
    let cpu = cpu();
    let coo = skewed::<f64>(&[80, 60, 900], 20_000, 4).unwrap();
    let coo = coo.with_values((0..coo.nnz()).map(|p| (p * p % 11 + 1) as f64).collect::<Vec<f64>>()).unwrap();
    let options = CpOptions { iterations: 15, tolerance: 1e-4, ..CpOptions::new(6) };
    let (state, iterations) = regress(&cpu, &coo, &options);
    // The rule for zeros may cost a little.
    assert!(iterations.windows(2).all(|w| w[1].objective <= w[0].objective + 1e-6 * w[0].objective.abs()));
    let mut sums = vec![0.0; 900];
    coo.coords(2).iter().zip(coo.values()).for_each(|(&i, x)| sums[i as usize] += x);
    for (i, sum) in sums.iter().enumerate() {
        let model: f64 = state.factors[2].row(i).iter().zip(&state.lambda).map(|(a, lambda)| a * lambda).sum();
        assert!(close(model, *sum, 1e-10), "{i}: {model} {sum}");
    }
    assert!(state.factors.iter().all(|f| f.iter_rows().all(|row| row.iter().all(|&x| x >= 0.0))));
}

#[test]
fn a_resumed_run_has_the_bits_of_an_unbroken_one_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let (coo, start) = counts::<f32>();
    let options = from(start, 12, 1e-5);
    let whole = cpu().cp_apr(&coo, &options, |_, _| ControlFlow::Continue(())).unwrap();
    let one = Cpu::builder().threads(1).pin(false).build().unwrap();
    assert_eq!(bits(&regress(&one, &coo, &options).0), bits(&whole));
    for end in [1, 5, 11] {
        let observe = |state: &CpState<f32>, iteration: &CpIteration| match iteration.number {
            number if number == end => {
                state.save(&path).unwrap();
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        cpu().cp_apr(&coo, &options, observe).unwrap();
        let resumed = CpOptions { init: CpInit::Resume(CpState::load(&path).unwrap()), ..options.clone() };
        assert_eq!(bits(&regress(&cpu(), &coo, &resumed).0), bits(&whole));
    }
    // One that has converged stays where it is.
    let (coo, start) = counts::<f64>();
    let (done, _) = regress(&cpu(), &coo, &from(start, 2000, 1e-3));
    assert!(done.fits.len() < 2000);
    let resumed = CpOptions { init: CpInit::Resume(done.clone()), iterations: 3000, ..CpOptions::new(3) };
    assert_eq!(bits(&regress(&cpu(), &coo, &resumed).0), bits(&done));
}

#[test]
fn odd_tensors_give_numbers_and_bad_input_errors() {
    let cpu = cpu();
    let zeros = CooTensor::new(vec![3, 3, 3], vec![vec![0, 2]; 3], vec![0.0f64; 2]).unwrap();
    let none = CooTensor::new(vec![4, 5, 6], vec![vec![]; 3], vec![]).unwrap();
    for coo in [zeros, none] {
        let (state, _) = regress(&cpu, &coo, &CpOptions { iterations: 5, ..CpOptions::new(2) });
        assert!(state.factors.iter().all(|f| f.iter_rows().all(|row| row.iter().all(|x| x.is_finite()))));
        assert_eq!(state.lambda, [0.0, 0.0]);
    }
    let (coo, start) = counts::<f64>();
    let good = from(start.clone(), 3, 1e-4);
    let mut negative = start;
    negative[1].row_mut(2)[0] = -0.5;
    for bad in [CpOptions { ridge: 1.0, ..good.clone() }, CpOptions { init: CpInit::Factors(negative), ..good.clone() }]
    {
        let result = cpu.cp_apr(&coo, &bad, |_, _| ControlFlow::Continue(()));
        assert!(matches!(result, Err(Error::Argument { .. })), "{bad:?}");
    }
    let below = coo.with_values(vec![-1.0; coo.nnz()]).unwrap();
    let flat = CooTensor::new(vec![4], vec![vec![1]], vec![1.0]).unwrap();
    for (coo, init) in [(below, good.init), (flat, CpInit::Seed(0))] {
        let options = CpOptions { init, ..CpOptions::new(3) };
        let result = cpu.cp_apr(&coo, &options, |_, _| ControlFlow::Continue(()));
        assert!(matches!(result, Err(Error::Structure { .. })));
    }
}
