//! TTV: y_f = sum over the nonzeros (k, x) of fiber f of x v_k.
//!
//! ```text
//! team = fiber; lane sums the nonzeros p0 + lane, p0 + lane + T, ...; the sums of the lanes are added by shuffles
//! ```

use spirv_std::glam::UVec4;

use crate::block::{Element, at, put};
use crate::team::Team;

/// One lane's share of one fiber.
#[inline(always)]
pub fn body<E: Element, T: Team>(
    count: u32,
    task: u32,
    team: T,
    tasks: &[UVec4],
    idx: &[u32],
    val: &[E],
    v: &[E],
    y: &mut [E],
) {
    let (mut row, mut start, mut end) = (0, 0, 0);
    if task < count {
        let t = at(tasks, task);
        row = t.x;
        start = t.y;
        end = t.z;
    }
    let mut sum = E::ZERO;
    let mut i = start + team.lane();
    while i < end {
        sum = sum + at(val, i) * at(v, at(idx, i));
        i += team.size();
    }
    let mut mask = 1;
    while mask < team.size() {
        sum = sum + team.shuffle_xor(sum, mask);
        mask *= 2;
    }
    if task < count && team.lane() == 0 {
        put(y, row, sum);
    }
}
