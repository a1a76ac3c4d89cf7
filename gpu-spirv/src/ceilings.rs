//! What a device sustains: passes over arrays that do next to nothing with them, and multiply-adds in registers.
//!
//! ```text
//! copy            z = x
//! add             z = x + y
//! multiply-add    z = x + s y
//! registers       a = t + s a, eight blocks of each lane, over and over
//! ```
//! A workgroup reads one slice of x and y a number of times, or, where slices take turns, the next slice each time: whatever a device's
//! nearest cache keeps of the one, it does not keep of all. It writes its own slice of z.

use sparsimd_gpu_abi::{CeilingParams, WORKGROUP, ceiling};

use crate::block::{Block, at, put};

/// The passes of workgroup `group`, for the lane `local` of it.
#[inline(always)]
pub fn stream<V: Block>(
    variant: u32,
    p: &CeilingParams<V::Element>,
    group: u32,
    local: u32,
    x: &[V],
    y: &[V],
    z: &mut [V],
) {
    let mut slice = group % p.slices;
    let mut pass = 0;
    while pass < p.passes {
        let (from, to) = (slice * p.slice, group * p.slice);
        let mut i = local;
        while i < p.slice {
            let a = at(x, from + i);
            let out = if variant == ceiling::COPY {
                a
            } else if variant == ceiling::ADD {
                a.plus(at(y, from + i))
            } else {
                a.add_scaled(p.scale, at(y, from + i))
            };
            put(z, to + i, out);
            i += WORKGROUP;
        }
        slice += p.turn;
        if slice >= p.slices {
            slice -= p.slices;
        }
        pass += 1;
    }
}

/// Multiply-adds of one lane, the number `lane` of all: [`ceiling::CHAINS`] blocks, `passes` times.
#[inline(always)]
pub fn registers<V: Block>(p: &CeilingParams<V::Element>, lane: u32, z: &mut [V]) {
    let (s, t) = (p.scale, V::splat(p.shift));
    // Blocks that differ: equal ones would be one.
    let mut a = t.scaled(s);
    let mut b = a.plus(t);
    let mut c = b.plus(t);
    let mut d = c.plus(t);
    let mut e = d.plus(t);
    let mut f = e.plus(t);
    let mut g = f.plus(t);
    let mut h = g.plus(t);
    let mut pass = 0;
    while pass < p.passes {
        a = t.add_scaled(s, a);
        b = t.add_scaled(s, b);
        c = t.add_scaled(s, c);
        d = t.add_scaled(s, d);
        e = t.add_scaled(s, e);
        f = t.add_scaled(s, f);
        g = t.add_scaled(s, g);
        h = t.add_scaled(s, h);
        pass += 1;
    }
    let sum = a.plus(b).plus(c.plus(d)).plus(e.plus(f).plus(g.plus(h)));
    put(z, lane, sum);
}
