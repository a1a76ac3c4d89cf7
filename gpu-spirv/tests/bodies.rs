//! The kernels' bodies on the processor: each lane of a team is a thread, shuffles go through shared memory. Every lane writes to its own
//! copy of the output, and the copies are merged: an element that two lanes wrote, or none, is a mistake.

mod common;

use std::sync::Mutex;

use common::{COLUMNS, Emulation, ROWS, SHAPES, by_fours, close, dense, dot, matrix, random, vec4};
use sparsimd_gpu_abi::{CeilingParams, FusedParams, SddmmParams, SpmmParams, WORKGROUP, ceiling, edge};
use sparsimd_shaders::block::Element;
use sparsimd_shaders::spmm::{Nonzeros, Shape};
use sparsimd_shaders::team::{Place, Team};
use sparsimd_shaders::{ceilings, elementwise, fusedmm, gather, sddmm, spmm, ttv};
use spirv_std::glam::{DVec4, Vec4};

#[test]
fn spmm_of_every_shape() {
    let m = matrix();
    let val: Vec<f32> = m.val.iter().map(|&v| v as f32).collect();
    let val4: Vec<Vec4> = val.chunks_exact(4).map(Vec4::from_slice).collect();
    let idx4 = by_fours(&m.idx);
    for (lanes, team, registers, width) in SHAPES {
        let (b, rows) = dense(COLUMNS, width, 0, vec4);
        let shape = Shape { team, registers };
        let p = SpmmParams {
            alpha: 2.0f32,
            beta: 0.5,
            tasks: m.tasks.len() as u32,
            width,
            b_stride: width,
            b_offset: 0,
            c_stride: width,
            c_offset: 0,
            read_c: 1,
            tail: 4,
        };
        let mut c = vec![Vec4::splat(3.0); ROWS.len() * width as usize];
        let nonzeros = Nonzeros { idx: &m.idx, idx4: &idx4, val: &val, val4: &val4 };
        for tile in 0..width.div_ceil(team * registers) {
            for first in (0..m.tasks.len() as u32).step_by((lanes / team) as usize) {
                let emulation = Emulation::new(lanes, team);
                let written = Mutex::new(vec![0; c.len()]);
                let old = c.clone();
                c = emulation.run(
                    &old.clone(),
                    |x| x.is_nan(),
                    |number, lane, own| {
                        let place = Place { team: first + number, lane: lane.lane() };
                        let mut out = old.clone();
                        spmm::body(shape, &p, place, tile, &m.tasks, nonzeros, &b[..], &mut out[..], &mut []);
                        for (i, (new, old)) in out.iter().zip(&old).enumerate() {
                            let changed = new != old;
                            own[i] = if changed { *new } else { Vec4::NAN };
                            written.lock().unwrap()[i] += u32::from(changed);
                        }
                    },
                );
                for (new, old) in c.iter_mut().zip(&old) {
                    if new.is_nan() {
                        *new = *old;
                    }
                }
                assert!(written.into_inner().unwrap().iter().all(|&n| n <= 1));
            }
        }
        for (i, task) in m.tasks.iter().enumerate() {
            for j in 0..4 * width as usize {
                let sum: f64 = (task.y..task.z).map(|p| m.val[p as usize] * rows[m.idx[p as usize] as usize][j]).sum();
                let got = c[i * width as usize + j / 4][j % 4];
                close(f64::from(got), 2.0 * sum + 1.5, &format!("{lanes} lanes, teams of {team}, row {i}, {j}"));
            }
        }
    }
}

#[test]
fn gather_takes_elements_in_order() {
    let mut out = [9.0f32; 4];
    (0..5).for_each(|i| gather::body(4, i, &[2, 1, 0, 2], &[1.0, 2.0, 3.0], &mut out));
    assert_eq!(out, [3.0, 2.0, 1.0, 3.0]);
}

#[test]
fn sddmm_of_every_shape() {
    let m = matrix();
    let val: Vec<f32> = m.val.iter().map(|&v| v as f32).collect();
    let idx4 = by_fours(&m.idx);
    for (lanes, team, registers, width) in SHAPES {
        let (b, b_rows) = dense(COLUMNS, width, 0, vec4);
        let (c, c_rows) = dense(ROWS.len() as u32, width, 77_000, vec4);
        let p = SddmmParams {
            alpha: 1.0f32,
            beta: 0.0,
            tasks: m.tasks.len() as u32,
            width,
            c_stride: width,
            c_offset: 0,
            b_stride: width,
            b_offset: 0,
            scaled: 1,
            accumulate: 0,
        };
        let mut out = vec![f32::NAN; m.idx.len() - 16];
        for first in (0..m.tasks.len() as u32).step_by((lanes / team) as usize) {
            let blank = vec![f32::NAN; out.len()];
            let got = Emulation::new(lanes, team).run(
                &blank,
                |x| x.is_nan(),
                |number, lane, own| {
                    let shape = Shape { team, registers };
                    sddmm::body(shape, &p, first + number, lane, &m.tasks, &idx4, &val, &c[..], &b[..], own);
                },
            );
            for (out, got) in out.iter_mut().zip(got).filter(|(_, got)| !got.is_nan()) {
                assert!(out.is_nan(), "written by two tasks");
                *out = got;
            }
        }
        for (i, task) in m.tasks.iter().enumerate() {
            for p in task.y as usize..task.z as usize {
                let want = m.val[p] * dot(&c_rows[i], &b_rows[m.idx[p] as usize]);
                close(f64::from(out[p]), want, &format!("{lanes} lanes, teams of {team}, row {i}, nonzero {p}"));
            }
        }
    }
}

#[test]
fn fusedmm_of_every_edge_in_f64() {
    let m = matrix();
    let idx4 = by_fours(&m.idx);
    for (lanes, team, registers, width) in SHAPES.into_iter().filter(|&(_, t, r, w)| w <= t * r) {
        let (b, b_rows) = dense(COLUMNS, width, 0, DVec4::from_array);
        let (c, c_rows) = dense(ROWS.len() as u32, width, 77_000, DVec4::from_array);
        for variant in [edge::IDENTITY, edge::SCALE, edge::SIGMOID, edge::SOFTMAX] {
            let p = FusedParams {
                scale: 0.7,
                zero: 0.0,
                tasks: m.tasks.len() as u32,
                width,
                c_stride: width,
                b_stride: width,
                d_stride: width,
                e_stride: width,
                out_width: width,
                tail: 4,
            };
            for first in (0..m.tasks.len() as u32).step_by((lanes / team) as usize) {
                let blank = vec![DVec4::NAN; ROWS.len() * width as usize];
                let e = Emulation::new(lanes, team).run(
                    &blank,
                    |x| x.is_nan(),
                    |number, lane, own| {
                        let shape = Shape { team, registers };
                        let (task, tasks, val) = (first + number, &m.tasks, &m.val);
                        fusedmm::body(
                            shape,
                            variant,
                            &p,
                            task,
                            lane,
                            tasks,
                            &idx4,
                            val,
                            &c[..],
                            &b[..],
                            &b[..],
                            own,
                            &mut [],
                            &mut [],
                        );
                    },
                );
                for task in m.tasks.iter().skip(first as usize).take((lanes / team) as usize) {
                    let i = task.x as usize;
                    let edges = (task.y as usize..task.z as usize).map(|p| {
                        let s = dot(&c_rows[i], &b_rows[m.idx[p] as usize]);
                        match variant {
                            edge::SCALE => s * m.val[p],
                            edge::SIGMOID => 1.0 / (1.0 + (-s).exp()),
                            edge::SOFTMAX => (0.7 * s).exp(),
                            _ => s,
                        }
                    });
                    let mut weights: Vec<f64> = edges.collect();
                    if variant == edge::SOFTMAX {
                        let sum: f64 = weights.iter().sum();
                        weights.iter_mut().for_each(|w| *w /= sum);
                    }
                    for j in 0..4 * width as usize {
                        let column = |p: usize| b_rows[m.idx[task.y as usize + p] as usize][j];
                        let want: f64 = weights.iter().enumerate().map(|(p, w)| w * column(p)).sum();
                        let got = e[i * width as usize + j / 4][j % 4];
                        assert!((got - want).abs() <= 1e-13, "edge {variant}, row {i}, column {j}: {got}, not {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn exponential_in_f64() {
    for i in -7450..7100 {
        let x = f64::from(i) / 10.0 + 0.013;
        let (got, want) = (x.exponential(), x.exp());
        let near = got == want || (got - want).abs() <= 4.0 * f64::EPSILON * want + f64::MIN_POSITIVE;
        assert!(near, "exp({x}) = {got}, not {want}");
    }
    assert_eq!(f64::INFINITY.exponential(), f64::INFINITY);
    assert_eq!(f64::NEG_INFINITY.exponential(), 0.0);
    assert_eq!(800.0f64.exponential(), f64::INFINITY);
    assert!(f64::NAN.exponential().is_nan());
}

#[test]
fn ttv_and_elementwise() {
    let m = matrix();
    let v: Vec<f64> = (0..COLUMNS).map(random).collect();
    for (i, task) in m.tasks.iter().enumerate() {
        let y = Emulation::new(4, 4).run(
            &[f64::NAN; ROWS.len()],
            |x| x.is_nan(),
            |_, lane, own| {
                ttv::body(m.tasks.len() as u32, i as u32, lane, &m.tasks, &m.idx, &m.val, &v, own);
            },
        );
        let want: f64 = (task.y as usize..task.z as usize).map(|p| m.val[p] * v[m.idx[p] as usize]).sum();
        close(y[i], want, &format!("fiber {i}"));
    }
    let mut z = [f32::NAN; 3];
    for i in 0..4 {
        elementwise::body(sparsimd_gpu_abi::operator::DIV, true, 3, i, 0.0, &[1.0, 2.0, 3.0], &[4.0, 4.0, 2.0], &mut z);
    }
    assert_eq!(z, [0.25, 0.5, 1.5]);
}

#[test]
fn ceilings_pass_over_their_slices() {
    let (groups, slices, slice) = (5u32, 3u32, 200u32);
    let block = |k: u32, of: f32| Vec4::splat(of + k as f32);
    let x: Vec<Vec4> = (0..slices * slice).map(|k| block(k, 1.0)).collect();
    let y: Vec<Vec4> = (0..slices * slice).map(|k| block(k, 5000.0)).collect();
    for (turn, passes) in [(0, 1), (0, 4), (1, 1), (1, 5)] {
        let p = CeilingParams { scale: 0.5f32, shift: 1.0, slice, slices, turn, passes };
        for variant in [ceiling::COPY, ceiling::ADD, ceiling::MULTIPLY_ADD] {
            let mut z = vec![Vec4::NAN; (groups * slice) as usize];
            for group in 0..groups {
                (0..WORKGROUP).for_each(|local| ceilings::stream(variant, &p, group, local, &x, &y, &mut z));
            }
            for (k, &z) in (0..).zip(&z) {
                // The slice that the last pass read.
                let from = (k / slice + turn * (passes - 1)) % slices * slice + k % slice;
                let (x, y) = (x[from as usize], y[from as usize]);
                let want = [x, x + y, x + y * 0.5][variant as usize];
                assert_eq!(z, want, "block {k}, variant {variant}, turn {turn}, {passes} passes");
            }
        }
        let mut z = vec![Vec4::NAN; 2];
        ceilings::registers(&p, 1, &mut z);
        // Each of the eight is shift (1 - scale^passes) / (1 - scale) + scale^passes first, first = 0.5, 1.5, ..., 7.5.
        let power = 0.5f64.powi(passes as i32);
        close(z[1].x.into(), 8.0 * 2.0 * (1.0 - power) + power * 32.0, "sum of the chains");
        assert!(z[0].is_nan());
    }
}
