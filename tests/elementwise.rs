//! TEW and TS against dense loops, on equal and different patterns.

mod common;

use std::collections::BTreeMap;

use sparsimd::formats::HiCoo;
use sparsimd::generate::{TensorSpec, skewed};
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::ops::Arithmetic;
use sparsimd::{Arch, CooTensor, Cpu, Error, Machine, Scalar, reference};

const OPS: [Arithmetic; 4] = [Arithmetic::Add, Arithmetic::Sub, Arithmetic::Mul, Arithmetic::Div];

fn apply<T: Scalar>(op: Arithmetic, a: T, b: T) -> T {
    match op {
        Arithmetic::Add => a + b,
        Arithmetic::Sub => a - b,
        Arithmetic::Mul => a * b,
        Arithmetic::Div => a / b,
    }
}

fn entries<T: Scalar>(t: &CooTensor<T>) -> BTreeMap<Vec<u32>, T> {
    (0..t.nnz()).map(|p| (t.all_coords().iter().map(|c| c[p]).collect(), t.values()[p])).collect()
}

/// Single operations are rounded alike everywhere: results must be equal to the last bit.
fn check<T: Scalar>(cpu: &Cpu) {
    for n in [0, 1, 7, 15, 16, 17, 63, 100, 1000, 70_000] {
        let x: Vec<T> = (0..n).map(|i| T::from_f64((i % 1013) as f64 - 500.5)).collect();
        let z: Vec<T> = (0..n).map(|i| T::from_f64((i % 97) as f64 + 0.25)).collect();
        for op in OPS {
            let mut y = vec![T::ZERO; n];
            cpu.tew_values(op, &x, &z, &mut y).unwrap();
            assert!((0..n).all(|i| y[i] == apply(op, x[i], z[i])), "{op:?} {n}");
            let s = T::from_f64(-1.75);
            cpu.ts_values(op, &x, s, &mut y).unwrap();
            assert!((0..n).all(|i| y[i] == apply(op, x[i], s)), "{op:?} {n}");
        }
    }
}

#[test]
fn values_of_every_length_type_and_instruction_set() {
    // The caches of the second are so small that long results are written past them.
    for machine in [Machine::detect(), Machine::describe("l3:1(size=64KB) core:4").unwrap()] {
        for arch in Arch::available() {
            let cpu = Cpu::builder().machine(machine.clone()).threads(3).pin(false).arch(arch).build().unwrap();
            check::<f32>(&cpu);
            check::<f64>(&cpu);
        }
    }
}

#[test]
fn equal_patterns_keep_their_order_in_every_format() {
    let cpu = Cpu::new().unwrap();
    let mut x: CooTensor<f32> = skewed(&[40, 50, 60], 3000, 1).unwrap();
    x.sort(&[2, 0, 1]).unwrap();
    let z = x.with_values(x.values().iter().map(|v| v * 3.0 + 1.0).collect::<Vec<_>>()).unwrap();
    let (hx, hz) = (HiCoo::new(&x, 3).unwrap(), HiCoo::new(&z, 3).unwrap());
    for op in OPS {
        let y = cpu.tew(op, &x, &z).unwrap();
        assert_eq!(y.all_coords(), x.all_coords());
        let expected: Vec<f32> = x.values().iter().zip(z.values()).map(|(&a, &b)| apply(op, a, b)).collect();
        assert_eq!(y.values(), expected);
        assert_eq!(entries(&cpu.tew_hicoo(op, &hx, &hz).unwrap().to_coo()), entries(&y));
        let y = cpu.ts(op, &x, 2.5).unwrap();
        assert_eq!(entries(&cpu.ts_hicoo(op, &hx, 2.5).unwrap().to_coo()), entries(&y));
        assert!(y.values().iter().zip(x.values()).all(|(&y, &x)| y == apply(op, x, 2.5)));
    }
    let other = HiCoo::new(&x, 4).unwrap();
    assert!(matches!(cpu.tew_hicoo(Arithmetic::Add, &hx, &other), Err(Error::Shape { .. })));
}

#[test]
fn every_operation_format_and_type_on_real_tensors() {
    fn check<T: Scalar>(cpu: &Cpu, name: &str, x: &CooTensor<T>) {
        let z = x.with_values(x.values().iter().map(|&v| v * v + T::from_f64(0.75)).collect::<Vec<_>>()).unwrap();
        let (hx, hz) = cpu.install(|| (HiCoo::new(x, 7).unwrap(), HiCoo::new(&z, 7).unwrap()));
        let s = T::from_f64(-1.75);
        for op in OPS {
            let y = cpu.tew(op, x, &z).unwrap();
            assert_eq!(y.all_coords(), x.all_coords(), "{name}");
            let same = |y: &[T], x: &[T], z: &[T]| (0..y.len()).all(|p| y[p] == apply(op, x[p], z[p]));
            assert!(same(y.values(), x.values(), z.values()), "{name} {op:?} {}", T::NAME);
            let y = cpu.tew_hicoo(op, &hx, &hz).unwrap();
            assert!(same(y.values(), hx.values(), hz.values()), "{name} {op:?} {} HiCOO", T::NAME);
            let scalar = |y: &[T], x: &[T]| y.iter().zip(x).all(|(&y, &x)| y == apply(op, x, s));
            assert!(scalar(cpu.ts(op, x, s).unwrap().values(), x.values()), "{name} {op:?} {}", T::NAME);
            assert!(scalar(cpu.ts_hicoo(op, &hx, s).unwrap().values(), hx.values()), "{name} {op:?} {}", T::NAME);
        }
    }
    let Some(dir) = common::data_dir() else { return };
    let cpu = Cpu::builder().threads(2).pin(false).build().unwrap();
    for path in common::tensor_files(&dir) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let x: CooTensor<f64> = read_tensor(&path, false, Duplicates::Sum, ReadOptions::default()).unwrap();
        check(&cpu, &name, &x);
        check(&cpu, &name, &x.cast::<f32>());
    }
}

#[test]
fn different_patterns_are_merged() {
    let cpu = Cpu::builder().threads(3).pin(false).build().unwrap();
    for (dims, nx, nz) in
        [(vec![30, 40, 50], 20_000, 30_000), (vec![900, 900, 90], 200_000, 100_000), (vec![7, 7], 0, 9)]
    {
        let mut x: CooTensor<f64> = skewed(&dims, nx, 1).unwrap();
        let z: CooTensor<f64> = skewed(&dims, nz, 2).unwrap();
        x.sort(&(0..dims.len()).rev().collect::<Vec<_>>()).unwrap();
        let (ex, ez) = (entries(&x), entries(&z));
        for op in [Arithmetic::Add, Arithmetic::Sub, Arithmetic::Mul] {
            let mut expected = BTreeMap::new();
            for place in ex.keys().chain(ez.keys()) {
                let (a, b) = (ex.get(place), ez.get(place));
                if op != Arithmetic::Mul || (a.is_some() && b.is_some()) {
                    let (a, b) = (a.copied().unwrap_or(0.0), b.copied().unwrap_or(0.0));
                    expected.insert(place.clone(), apply(op, a, b));
                }
            }
            let y = cpu.tew(op, &x, &z).unwrap();
            assert!(y.is_sorted(&(0..dims.len()).collect::<Vec<_>>()).unwrap());
            assert_eq!(y.nnz(), expected.len());
            assert!(entries(&y) == expected, "{op:?} {dims:?}");
        }
        // Division is defined where X is within Z.
        let product = cpu.tew(Arithmetic::Mul, &x, &z).unwrap();
        let quotient = cpu.tew(Arithmetic::Div, &product, &z).unwrap();
        assert_eq!(quotient.all_coords(), product.all_coords());
        if nx > 0 {
            let message = cpu.tew(Arithmetic::Div, &x, &z).unwrap_err().to_string();
            assert!(message.contains("division by 0"), "{message}");
        }
    }
}

/// The entry of `t` that stands at `place` of the shape that it is repeated to.
fn entry<'e>(t: &CooTensor<f64>, entries: &'e BTreeMap<Vec<u32>, f64>, place: &[u32]) -> Option<&'e f64> {
    let own = &place[place.len() - t.order()..];
    entries.get(&own.iter().zip(t.dims()).map(|(&at, &dim)| if dim == 1 { 0 } else { at }).collect::<Vec<_>>())
}

#[test]
fn the_smaller_tensor_is_repeated() {
    let cpu = Cpu::builder().threads(3).pin(false).build().unwrap();
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[6, 7, 8], &[6, 1, 8]),
        (&[6, 1, 8], &[1, 7, 8]),
        (&[5, 6, 7], &[7]),
        (&[4, 5], &[3, 4, 5]),
        (&[1], &[4, 4]),
        (&[9, 8], &[1, 1]),
        (&[1, 3, 1, 3], &[2, 1]),
    ];
    for (of_x, of_z) in shapes {
        // Half of the places each.
        let tensor = |dims: &[usize], seed| skewed(dims, dims.iter().product::<usize>().div_ceil(2), seed).unwrap();
        let (x, z): (CooTensor<f64>, CooTensor<f64>) = (tensor(of_x, 1), tensor(of_z, 2));
        let (ex, ez) = (entries(&x), entries(&z));
        let order = of_x.len().max(of_z.len());
        let dim = |dims: &[usize], m: usize| (m + dims.len()).checked_sub(order).map_or(1, |m| dims[m]);
        let dims: Vec<usize> = (0..order).map(|m| dim(of_x, m).max(dim(of_z, m))).collect();
        let mut places = vec![Vec::new()];
        for &dim in &dims {
            places = places.iter().flat_map(|p| (0..dim as u32).map(move |i| [&p[..], &[i]].concat())).collect();
        }
        for op in OPS {
            let mut expected = BTreeMap::new();
            let mut undefined = false;
            for place in &places {
                let value = match (entry(&x, &ex, place), entry(&z, &ez, place)) {
                    (Some(&a), Some(&b)) => Some(apply(op, a, b)),
                    (Some(&a), None) if matches!(op, Arithmetic::Add | Arithmetic::Sub) => Some(a),
                    (None, Some(&b)) if matches!(op, Arithmetic::Add | Arithmetic::Sub) => Some(apply(op, 0.0, b)),
                    (Some(_), None) => {
                        undefined |= op == Arithmetic::Div;
                        None
                    }
                    _ => None,
                };
                value.map(|value| expected.insert(place.clone(), value));
            }
            let y = cpu.tew(op, &x, &z);
            if undefined {
                assert!(matches!(y, Err(Error::Argument { .. })), "{of_x:?} {op:?} {of_z:?}");
                continue;
            }
            let y = y.unwrap();
            assert_eq!(y.dims(), dims);
            assert!(reference::tew(op, &x, &z, &y).unwrap() <= 1.0);
            assert_eq!(y.nnz(), expected.len(), "{of_x:?} {op:?} {of_z:?}");
            assert!(entries(&y) == expected, "{of_x:?} {op:?} {of_z:?}");
        }
        // Division is defined where X is within Z.
        let product = cpu.tew(Arithmetic::Mul, &x, &z).unwrap();
        let quotient = cpu.tew(Arithmetic::Div, &product, &z).unwrap();
        assert_eq!(entries(&quotient).len(), product.nnz());
    }
}

#[test]
fn bad_operands_are_refused() {
    let cpu = Cpu::new().unwrap();
    let x: CooTensor<f32> = "skew:5x6:10".parse::<TensorSpec>().unwrap().generate(1).unwrap();
    let z: CooTensor<f32> = "skew:5x7:10".parse::<TensorSpec>().unwrap().generate(1).unwrap();
    assert!(matches!(cpu.tew(Arithmetic::Add, &x, &z), Err(Error::Shape { .. })));
    assert!(matches!(cpu.ts(Arithmetic::Div, &x, 0.0), Err(Error::Argument { .. })));
    assert!(cpu.tew_values(Arithmetic::Add, &[1.0], &[1.0, 2.0], &mut [0.0]).is_err());
    assert!(cpu.ts_values(Arithmetic::Add, &[1.0], 1.0, &mut [0.0, 0.0]).is_err());
    let twice = CooTensor::new(vec![5, 6], vec![vec![1, 1], vec![2, 2]], vec![1.0f32, 2.0]).unwrap();
    assert!(matches!(cpu.tew(Arithmetic::Add, &x, &twice), Err(Error::Structure { .. })));
}
