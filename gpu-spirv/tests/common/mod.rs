//! Lanes as threads, small operands, and what is close.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::sync::{Barrier, Mutex};

use sparsimd_gpu_abi::WHOLE;
use sparsimd_shaders::block::{Block, Element};
use sparsimd_shaders::team::Team;
use spirv_std::glam::{UVec4, Vec4};

/// Teams of `size` lanes in a subgroup of `lanes`.
pub struct Emulation {
    lanes: u32,
    size: u32,
    barrier: Barrier,
    slots: Mutex<Vec<f64>>,
}

#[derive(Clone, Copy)]
pub struct Lane<'a> {
    pub all: &'a Emulation,
    pub number: u32,
}

impl Emulation {
    pub fn new(lanes: u32, size: u32) -> Self {
        Self { lanes, size, barrier: Barrier::new(lanes as usize), slots: Mutex::new(vec![0.0; lanes as usize]) }
    }

    /// Runs `body` on every lane of one subgroup, (team of the subgroup, lane), each with its own copy of `out`; merges.
    pub fn run<T: Copy + Send + Sync>(
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
    fn word_of(self, x: u32, lane: u32) -> u32 {
        self.exchange(f64::from(x), self.number - self.lane() + lane) as u32
    }
    fn in_step_max(self, n: u32) -> u32 {
        (0..self.all.lanes).map(|l| self.exchange(f64::from(n), l) as u32).max().unwrap()
    }
}

/// A small matrix: rows of 0, 1, 3, 5, 13 and 24 nonzeros, 30 columns.
pub const ROWS: [u32; 6] = [0, 1, 3, 5, 13, 24];
pub const COLUMNS: u32 = 30;

pub fn random(i: u32) -> f64 {
    f64::from(i.wrapping_mul(2654435761) >> 8) / f64::from(1 << 24) - 0.5
}

pub struct Matrix {
    pub tasks: Vec<UVec4>,
    pub idx: Vec<u32>,
    pub val: Vec<f64>,
}

pub fn matrix() -> Matrix {
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

pub fn by_fours(idx: &[u32]) -> Vec<UVec4> {
    idx.chunks_exact(4).map(UVec4::from_slice).collect()
}

/// `rows` x `width` blocks of numbers, and the same as f64.
pub fn dense<V: Block>(rows: u32, width: u32, seed: u32, make: impl Fn([f64; 4]) -> V) -> (Vec<V>, Vec<Vec<f64>>) {
    let row = |i: u32| (0..4 * width).map(|j| random(seed + 4 * width * i + j)).collect::<Vec<_>>();
    let rows: Vec<Vec<f64>> = (0..rows).map(row).collect();
    let blocks = rows.iter().flat_map(|r| r.chunks_exact(4)).map(|c| make([c[0], c[1], c[2], c[3]])).collect();
    (blocks, rows)
}

pub fn vec4(x: [f64; 4]) -> Vec4 {
    Vec4::new(x[0] as f32, x[1] as f32, x[2] as f32, x[3] as f32)
}

pub fn close(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "{what}: {got}, not {want}");
}

/// Subgroup sizes, teams in them, registers and row widths, full and not.
pub const SHAPES: [(u32, u32, u32, u32); 5] = [(4, 4, 1, 3), (8, 4, 2, 7), (8, 8, 4, 32), (16, 8, 1, 8), (8, 4, 1, 11)];

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
