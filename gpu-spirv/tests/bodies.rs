//! The kernels' bodies on the processor: each lane of a team is a thread, shuffles go through shared memory. Every lane writes to its own
//! copy of the output, and the copies are merged: an element that two lanes wrote, or none, is a mistake.

use std::sync::{Barrier, Mutex};

use sparsimd_gpu_abi::{
    FusedParams, GRANULE, MttkrpParams, NO_ROW, SddmmParams, SpmmParams, TiledParams, WHOLE, WORKGROUP, edge,
};
use sparsimd_shaders::block::{Block, Element};
use sparsimd_shaders::spmm::{Nonzeros, Shape};
use sparsimd_shaders::team::{Place, Team};
use sparsimd_shaders::tiled::{Memory, Panels, Seat};
use sparsimd_shaders::{elementwise, fusedmm, gather, mttkrp, sddmm, spmm, tiled, ttv};
use spirv_std::glam::{DVec4, UVec2, UVec4, Vec4};

/// Teams of `size` lanes in a subgroup of `lanes`.
struct Emulation {
    lanes: u32,
    size: u32,
    barrier: Barrier,
    slots: Mutex<Vec<f64>>,
}

#[derive(Clone, Copy)]
struct Lane<'a> {
    all: &'a Emulation,
    number: u32,
}

impl Emulation {
    fn new(lanes: u32, size: u32) -> Self {
        Self { lanes, size, barrier: Barrier::new(lanes as usize), slots: Mutex::new(vec![0.0; lanes as usize]) }
    }

    /// Runs `body` on every lane of one subgroup, (team of the subgroup, lane), each with its own copy of `out`; merges.
    fn run<T: Copy + Send + Sync>(
        &self,
        out: &[T],
        untouched: impl Fn(&T) -> bool + Sync,
        body: impl Fn(u32, Lane<'_>, &mut [T]) + Sync,
    ) -> Vec<T> {
        let copies: Vec<Vec<T>> = std::thread::scope(|scope| {
            let spawn = |number| {
                let body = &body;
                scope.spawn(move || {
                    let mut own = out.to_vec();
                    body(number / self.size, Lane { all: self, number }, &mut own);
                    own
                })
            };
            let running: Vec<_> = (0..self.lanes).map(spawn).collect();
            running.into_iter().map(|r| r.join().unwrap()).collect()
        });
        let mut merged = out.to_vec();
        for (i, place) in merged.iter_mut().enumerate() {
            let mut writers = copies.iter().filter(|c| !untouched(&c[i]));
            if let Some(writer) = writers.next() {
                *place = writer[i];
                assert!(writers.next().is_none(), "element {i} was written twice");
            }
        }
        merged
    }
}

impl Lane<'_> {
    fn exchange(self, x: f64, from: u32) -> f64 {
        self.all.slots.lock().unwrap()[self.number as usize] = x;
        self.all.barrier.wait();
        let got = self.all.slots.lock().unwrap()[from as usize];
        self.all.barrier.wait();
        got
    }
}

impl Team for Lane<'_> {
    fn lane(self) -> u32 {
        self.number % self.all.size
    }
    fn size(self) -> u32 {
        self.all.size
    }
    fn shuffle_xor<E: Element>(self, x: E, mask: u32) -> E {
        E::from_f64(self.exchange(x.to_f64(), self.number ^ mask))
    }
    fn value_of<E: Element>(self, x: E, lane: u32) -> E {
        E::from_f64(self.exchange(x.to_f64(), self.number - self.lane() + lane))
    }
    fn in_step_max(self, n: u32) -> u32 {
        (0..self.all.lanes).map(|l| self.exchange(f64::from(n), l) as u32).max().unwrap()
    }
}

/// A small matrix: rows of 0, 1, 3, 5, 13 and 24 nonzeros, 30 columns.
const ROWS: [u32; 6] = [0, 1, 3, 5, 13, 24];
const COLUMNS: u32 = 30;

fn random(i: u32) -> f64 {
    f64::from(i.wrapping_mul(2654435761) >> 8) / f64::from(1 << 24) - 0.5
}

struct Matrix {
    tasks: Vec<UVec4>,
    idx: Vec<u32>,
    val: Vec<f64>,
}

fn matrix() -> Matrix {
    let (mut tasks, mut idx) = (Vec::new(), Vec::new());
    for (i, &n) in ROWS.iter().enumerate() {
        let start = idx.len() as u32;
        idx.extend((0..n).map(|j| (7 * j + i as u32) % COLUMNS));
        tasks.push(UVec4::new(i as u32, start, start + n, WHOLE));
    }
    let val = (0..idx.len() as u32 + 16).map(|p| random(p + 1000)).collect();
    idx.extend([0; 16]);
    Matrix { tasks, idx, val }
}

fn by_fours(idx: &[u32]) -> Vec<UVec4> {
    idx.chunks_exact(4).map(UVec4::from_slice).collect()
}

/// `rows` x `width` blocks of numbers, and the same as f64.
fn dense<V: Block>(rows: u32, width: u32, seed: u32, make: impl Fn([f64; 4]) -> V) -> (Vec<V>, Vec<Vec<f64>>) {
    let row = |i: u32| (0..4 * width).map(|j| random(seed + 4 * width * i + j)).collect::<Vec<_>>();
    let rows: Vec<Vec<f64>> = (0..rows).map(row).collect();
    let blocks = rows.iter().flat_map(|r| r.chunks_exact(4)).map(|c| make([c[0], c[1], c[2], c[3]])).collect();
    (blocks, rows)
}

fn vec4(x: [f64; 4]) -> Vec4 {
    Vec4::new(x[0] as f32, x[1] as f32, x[2] as f32, x[3] as f32)
}

fn close(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "{what}: {got}, not {want}");
}

/// Subgroup sizes, teams in them, registers and row widths, full and not.
const SHAPES: [(u32, u32, u32, u32); 5] = [(4, 4, 1, 3), (8, 4, 2, 7), (8, 8, 4, 32), (16, 8, 1, 8), (8, 4, 1, 11)];

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn spmm_of_every_shape() {
    let m = matrix();
    let val: Vec<f32> = m.val.iter().map(|&v| v as f32).collect();
    let val4: Vec<Vec4> = val.chunks_exact(4).map(Vec4::from_slice).collect();
    let idx4 = by_fours(&m.idx);
    for ((lanes, team, registers, width), step) in SHAPES.into_iter().zip([4, 8, 8, 4, 8]) {
        let (b, rows) = dense(COLUMNS, width, 0, vec4);
        let shape = Shape { team, registers, step };
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
                        spmm::body(shape, &p, place, tile, &m.tasks, nonzeros, &b, &mut out, &mut []);
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

/// Workgroup memory of invocations that are threads.
struct Shared<'a>(&'a Mutex<Vec<Vec4>>, &'a Barrier);

impl Memory<Vec4> for Shared<'_> {
    fn set(&mut self, i: u32, x: Vec4) {
        self.0.lock().unwrap()[i as usize] = x;
    }
    fn get(&self, i: u32) -> Vec4 {
        self.0.lock().unwrap()[i as usize]
    }
    fn barrier(&self) {
        self.1.wait();
    }
}

#[test]
fn tiled_spmm_of_every_shape() {
    const ROWS: u32 = 6;
    const COLUMNS: u32 = 70;
    let granules = COLUMNS.div_ceil(GRANULE);
    // Row i has column k; every third column is nobody's.
    let has = |i: u32, k: u32| i < ROWS && !k.is_multiple_of(3) && (k * 5 + i * 11) % 7 < 1 + i;
    let value = |i: u32, k: u32| random(5000 + 97 * i + k) as f32;
    let (mut ptr, mut columns, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for panel in 0..2 {
        for g in 0..granules {
            ptr.push(columns.len() as u32);
            let mask = |k: u32| (0..4).map(|r| u32::from(has(4 * panel + r, k)) << (5 + r)).sum::<u32>();
            let own: Vec<u32> = (g * GRANULE..(g * GRANULE + GRANULE).min(COLUMNS)).filter(|&k| mask(k) != 0).collect();
            for quad in own.chunks(4) {
                let packed = |c: usize| quad.get(c).map_or(0, |&k| mask(k) | (k % GRANULE));
                columns.push(UVec2::new(packed(0) | packed(1) << 16, packed(2) | packed(3) << 16));
                values.extend((0..4).map(|c| {
                    // What a row has not must not count, whatever stands there.
                    let x = |r: u32| quad.get(c).filter(|&&k| has(4 * panel + r, k)).map(|&k| value(4 * panel + r, k));
                    let x = |r: u32| x(r).unwrap_or(f32::NAN);
                    Vec4::new(x(0), x(1), x(2), x(3))
                }));
            }
        }
        ptr.push(columns.len() as u32);
    }
    let rows = [UVec4::new(2, 0, 1, 3), UVec4::new(5, 4, NO_ROW, NO_ROW)];
    let place = |row: u32| [2, 0, 1, 3, 5, 4].iter().position(|&r| r == row).unwrap() as u32;
    for (team, registers, width, parts, span) in
        [(8, 4, 32, 1, 1), (8, 4, 9, 2, 1), (32, 1, 5, 1, 2), (64, 1, 70, 2, 1), (16, 2, 33, 1, 3)]
    {
        let (b, b_rows) = dense(COLUMNS, width, 0, vec4);
        let p = TiledParams {
            alpha: 2.0f32,
            beta: 0.5,
            panels: 2,
            width,
            b_stride: width,
            b_offset: 0,
            c_stride: width,
            c_offset: 0,
            read_c: 1,
            tail: 4,
            granules,
            span,
            b_rows: COLUMNS,
            zero: 0,
        };
        let old = vec![Vec4::splat(3.0); (ROWS * width) as usize];
        let mut out = if parts == 1 { old } else { vec![Vec4::NAN; (8 * parts * width) as usize] };
        for group in 0..2u32.div_ceil(WORKGROUP / team) * parts {
            for tile in 0..width.div_ceil(team * registers) {
                let memory = Mutex::new(vec![Vec4::NAN; (span * GRANULE * team * registers) as usize]);
                let barrier = Barrier::new(WORKGROUP as usize);
                let copies: Vec<Vec<Vec4>> = std::thread::scope(|scope| {
                    let run = |local| {
                        let (panels, b, p, mut own) = ((&rows, &ptr, &columns, &values), &b, &p, out.clone());
                        let mut shared = Shared(&memory, &barrier);
                        scope.spawn(move || {
                            let (rows, ptr, columns, values) = panels;
                            let panels = Panels { rows, ptr, columns, values };
                            let (shape, seat) = (Shape { team, registers, step: 4 }, Seat { group, local, tile });
                            let (c, partial) =
                                if parts == 1 { (&mut own[..], &mut [][..]) } else { (&mut [][..], &mut own[..]) };
                            tiled::body(shape, parts, p, seat, panels, b, c, partial, &mut shared);
                            own
                        })
                    };
                    let running: Vec<_> = (0..WORKGROUP).map(run).collect();
                    running.into_iter().map(|r| r.join().unwrap()).collect()
                });
                let before = out.clone();
                let changed = |a: &Vec4, b: &Vec4| a.to_array().map(f32::to_bits) != b.to_array().map(f32::to_bits);
                for (i, place) in out.iter_mut().enumerate() {
                    let mut writers = copies.iter().filter(|c| changed(&c[i], &before[i]));
                    if let Some(writer) = writers.next() {
                        *place = writer[i];
                        assert!(writers.next().is_none(), "block {i} was written twice");
                    }
                }
            }
        }
        for i in 0..ROWS {
            for j in 0..4 * width {
                let list = (0..COLUMNS).filter(|&k| has(place(i), k));
                let sum: f64 = list.map(|k| f64::from(value(place(i), k)) * b_rows[k as usize][j as usize]).sum();
                let element = |row: u32| f64::from(out[(row * width + j / 4) as usize][(j % 4) as usize]);
                let (got, want) = match parts {
                    1 => (element(i), 2.0 * sum + 1.5),
                    _ => ((0..parts).map(|s| element(place(i) * parts + s)).sum(), sum),
                };
                close(got, want, &format!("teams of {team}, {registers} registers, {parts} parts, row {i}, {j}"));
            }
        }
    }
}

#[test]
fn gather_leaves_zeros_where_nothing_comes_from() {
    let mut out = [9.0f32; 4];
    (0..5).for_each(|i| gather::body(4, i, &[2, u32::MAX, 0, 2], &[1.0, 2.0, 3.0], &mut out));
    assert_eq!(out, [3.0, 0.0, 1.0, 3.0]);
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
                    let shape = Shape { team, registers, step: 4 };
                    sddmm::body(shape, &p, first + number, lane, &m.tasks, &idx4, &val, &c, &b, own);
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
                        let shape = Shape { team, registers, step: 4 };
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
                            &c,
                            &b,
                            &b,
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

/// Memory that nobody else adds to.
struct Alone<'a>(&'a mut [f32]);

impl mttkrp::Add<f32> for Alone<'_> {
    fn add(&mut self, i: u32, x: f32) {
        self.0[i as usize] += x;
    }
}

#[test]
fn mttkrp_by_fibers_and_by_nonzeros_agree_with_the_sum() {
    // Order 3, dims 2 x 3 x 4; factors stacked: rows 0-1, 2-4, 5-8. Fibers (0,1), (0,2), (1,1).
    let ptr = [0, 2, 3, 6];
    let table = [0, 3, 0, 4, 1, 3];
    let leaf = [5, 7, 8, 5, 6, 8, 0, 0, 0, 0, 0, 0];
    let val: Vec<f32> = (0..12).map(|p| random(p) as f32).collect();
    let val4: Vec<Vec4> = val.chunks_exact(4).map(Vec4::from_slice).collect();
    let leaf4 = by_fours(&leaf);
    let width = 5;
    let (factors, rows) = dense(9, width, 5, vec4);
    let fiber_of = [0, 0, 1, 2, 2, 2];
    let params = |tasks: usize, skip, ordered| MttkrpParams {
        zero: 0.0f32,
        one: 1.0,
        tasks: tasks as u32,
        width,
        f_stride: width,
        f_offset: 0,
        c_stride: width,
        c_offset: 0,
        levels: 2,
        skip,
        ordered,
        tail: 4,
    };
    let nonzeros = Nonzeros { idx: &leaf, idx4: &leaf4, val: &val, val4: &val4 };
    let shape = Shape { team: 4, registers: 2, step: 8 };
    // (output rows, tasks, level skipped, items through a list, list)
    let slices = vec![UVec4::new(0, 0, 2, WHOLE), UVec4::new(1, 2, 3, WHOLE)];
    let by_fiber = vec![UVec4::new(1, 0, 2, WHOLE), UVec4::new(2, 2, 3, WHOLE)];
    let by_leaf = vec![
        UVec4::new(0, 0, 2, WHOLE),
        UVec4::new(1, 2, 3, WHOLE),
        UVec4::new(2, 3, 4, WHOLE),
        UVec4::new(3, 4, 6, WHOLE),
    ];
    let cases =
        [(2usize, slices, 0u32, vec![]), (3, by_fiber, 1, vec![0, 2, 1]), (4, by_leaf, 2, vec![0, 3, 4, 1, 2, 5])];
    let coords = |p: usize| {
        let fiber = fiber_of[p] as usize;
        [table[2 * fiber], table[2 * fiber + 1], leaf[p]]
    };
    let want = |mode: usize, i: usize, j: usize| -> f64 {
        let term = |p: usize| {
            let others = (0..3).filter(|&m| m != mode);
            f64::from(val[p]) * others.map(|m| rows[coords(p)[m] as usize][j]).product::<f64>()
        };
        (0..6).filter(|&p| coords(p)[mode] as usize - [0, 2, 5][mode] == i).map(term).sum()
    };
    // The atomic variant, on coordinates; rows of five blocks of which the last holds three numbers.
    let table3: Vec<u32> = (0..6).flat_map(coords).collect();
    for (mode, dim) in [2usize, 3, 4].into_iter().enumerate() {
        let mut out = vec![0.0f32; dim * 4 * width as usize];
        let mut p = params(6, mode as u32, 0);
        (p.levels, p.tail) = (3, 3);
        p.c_offset = 0u32.wrapping_sub([0, 2, 5][mode] * width);
        for lane in 0..4 {
            let place = Place { team: 0, lane };
            mttkrp::atomic(shape, &p, place, 0, &table3, &val, &factors, &mut Alone(&mut out));
        }
        for (at, &got) in out.iter().enumerate() {
            let (i, j) = (at / (4 * width as usize), at % (4 * width as usize));
            let want = if j + 1 < 4 * width as usize { want(mode, i, j) } else { 0.0 };
            close(f64::from(got), want, &format!("atomic, mode {mode}, row {i}, {j}"));
        }
    }
    for (mode, (dim, tasks, skip, order)) in cases.into_iter().enumerate() {
        let mut out = vec![Vec4::ZERO; dim * width as usize];
        for team in 0..tasks.len() as u32 {
            for lane in 0..4 {
                let place = Place { team, lane };
                let p = params(tasks.len(), skip, u32::from(!order.is_empty()));
                if skip < 2 {
                    mttkrp::fibers(
                        shape,
                        &p,
                        place,
                        0,
                        &tasks,
                        &order,
                        &ptr,
                        &table,
                        nonzeros,
                        &factors,
                        &mut out,
                        &mut [],
                    );
                } else {
                    mttkrp::nonzeros(
                        shape,
                        &p,
                        place,
                        0,
                        &tasks,
                        &order,
                        &fiber_of,
                        &table,
                        &val,
                        &factors,
                        &mut out,
                        &mut [],
                    );
                }
            }
        }
        for i in 0..dim {
            for j in 0..4 * width as usize {
                let want = want(mode, i, j);
                close(f64::from(out[i * width as usize + j / 4][j % 4]), want, &format!("mode {mode}, row {i}, {j}"));
            }
        }
    }
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
