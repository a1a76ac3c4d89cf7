//! Bits of several coordinates laid out in one key in any arrangement: interleaved (Morton order), or in fields.

use super::radix::Key;

/// Where each bit of each coordinate goes in a key, as tables of one byte of coordinate each.
///
/// A coordinate of 32 bits costs four look-ups, whatever the arrangement of its bits.
#[derive(Clone, Debug)]
pub struct Deposit<K> {
    tables: Vec<Vec<[K; 256]>>,
    positions: Vec<Vec<u32>>,
}

impl<K: Key> Deposit<K> {
    /// The arrangement in which bit `b` of coordinate `c` is bit `positions[c][b]` of the key, all positions being
    /// different and below the width of the key.
    pub fn new(positions: Vec<Vec<u32>>) -> Self {
        let table = |byte: &[u32]| {
            std::array::from_fn(|x| {
                let set = byte.iter().enumerate().filter(|&(bit, _)| x >> bit & 1 == 1);
                set.fold(K::ZERO, |key, (_, &position)| key.with_field(1, position))
            })
        };
        let tables = positions.iter().map(|bits| bits.chunks(8).map(table).collect()).collect();
        Self { tables, positions }
    }

    /// The key of the place whose `c`-th coordinate is `coordinate(c)`. Coordinate bits without a position must be 0.
    #[inline]
    pub fn key(&self, coordinate: impl Fn(usize) -> u32) -> K {
        let mut key = K::ZERO;
        for (c, tables) in self.tables.iter().enumerate() {
            let mut rest = coordinate(c);
            for table in tables {
                key = key.or(table[(rest & 0xff) as usize]);
                rest >>= 8;
            }
        }
        key
    }

    /// The `c`-th coordinate of `key`, bit by bit.
    #[inline]
    pub fn coordinate(&self, key: K, c: usize) -> u32 {
        let bits = self.positions[c].iter().enumerate();
        bits.fold(0, |i, (bit, &position)| i | (key.field(position, 1) as u32) << bit)
    }
}

/// Positions that interleave coordinates of the given widths in Morton order from key bit `shift` on: at every level the
/// first coordinate's bit is the most significant one. Returns the positions and the first bit above them.
pub fn interleave(widths: &[u32], shift: u32) -> (Vec<Vec<u32>>, u32) {
    let mut positions = vec![Vec::new(); widths.len()];
    let mut next = shift;
    for level in 0..widths.iter().copied().max().unwrap_or(0) {
        for (c, &width) in widths.iter().enumerate().rev() {
            if level < width {
                positions[c].push(next);
                next += 1;
            }
        }
    }
    (positions, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn morton_order_of_two_coordinates() {
        let (positions, end) = interleave(&[2, 2], 0);
        assert_eq!(end, 4);
        let deposit = Deposit::<u64>::new(positions);
        let mut places: Vec<(u32, u32)> = (0..4).flat_map(|i| (0..4).map(move |j| (i, j))).collect();
        places.sort_by_key(|&(i, j)| deposit.key(|c| [i, j][c]));
        assert_eq!(places[..8], [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
    }

    #[test]
    fn deposits_and_extracts_wide_and_uneven_coordinates() {
        let (positions, end) = interleave(&[32, 3, 0, 17], 5);
        assert_eq!(end, 57);
        let deposit = Deposit::<u128>::new(positions);
        let place = [0xdead_beef, 5, 0, 0x1_2345];
        let key = deposit.key(|c| place[c]);
        assert_eq!(key & 31, 0);
        assert_eq!([0, 1, 2, 3].map(|c| deposit.coordinate(key, c)), place);
    }
}
