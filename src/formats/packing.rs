//! Coordinates of one nonzero packed into one integer, so that sorting and comparing tensors' entries is sorting and
//! comparing numbers.

use super::radix::Key;

/// Bits that the coordinates of a mode of length `dim` need.
pub fn mode_bits(dim: usize) -> u32 {
    usize::BITS - dim.saturating_sub(1).leading_zeros()
}

/// Where each of some modes' coordinates lies in a packed key; the first mode is the most significant one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    fields: Vec<Field>,
    bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    mode: usize,
    shift: u32,
    bits: u32,
}

impl Packing {
    /// The packing of the modes `mode_order` of a tensor of `dims`, the first one most significant.
    pub fn new(dims: &[usize], mode_order: &[usize]) -> Self {
        let mut bits = 0;
        let mut fields: Vec<_> = mode_order
            .iter()
            .rev()
            .map(|&mode| {
                let width = mode_bits(dims[mode]);
                // A mode of one coordinate has no field; shift 0 keeps its (empty) field inside the key.
                let shift = if width == 0 { 0 } else { bits };
                bits += width;
                Field { mode, shift, bits: width }
            })
            .collect();
        fields.reverse();
        Self { fields, bits }
    }

    /// `mode_order` cut into as few packings as keep each within 128 bits, most significant first.
    pub fn groups(dims: &[usize], mode_order: &[usize]) -> Vec<Self> {
        let mut groups = Vec::new();
        let (mut start, mut bits) = (0, 0);
        for (level, &mode) in mode_order.iter().enumerate() {
            let width = mode_bits(dims[mode]);
            if bits + width > u128::BITS {
                groups.push(Self::new(dims, &mode_order[start..level]));
                (start, bits) = (level, 0);
            }
            bits += width;
        }
        groups.push(Self::new(dims, &mode_order[start..]));
        groups
    }

    /// Bits of a packed key.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// The key of entry `p`; `coords[mode]` holds the coordinates of `mode`.
    ///
    /// # Panics
    /// When `p` or a mode is out of range, as slice indexing does.
    #[inline]
    pub fn pack<K: Key>(&self, coords: &[Vec<u32>], p: usize) -> K {
        self.fields.iter().fold(K::ZERO, |key, field| key.with_field(coords[field.mode][p], field.shift))
    }

    /// The key of the place whose coordinate in `mode` is `place[mode]`.
    ///
    /// # Panics
    /// When a mode is out of range, as slice indexing does.
    #[inline]
    pub fn pack_place<K: Key>(&self, place: &[u32]) -> K {
        self.fields.iter().fold(K::ZERO, |key, field| key.with_field(place[field.mode], field.shift))
    }

    /// Calls `out(mode, coordinate)` for every packed mode of `key`, most significant first.
    #[inline]
    pub fn unpack<K: Key>(&self, key: K, mut out: impl FnMut(usize, u32)) {
        for field in &self.fields {
            out(field.mode, key.field(field.shift, field.bits) as u32);
        }
    }

    /// The coordinate of the packing's `level`-th mode in `key`.
    ///
    /// # Panics
    /// When `level` is not below the number of packed modes.
    #[inline]
    pub fn coordinate<K: Key>(&self, key: K, level: usize) -> u32 {
        let field = self.fields[level];
        key.field(field.shift, field.bits) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_a_mode() {
        let bits: Vec<_> = [0, 1, 2, 3, 4, 5, 256, 257, u32::MAX as usize].map(mode_bits).to_vec();
        assert_eq!(bits, [0, 0, 1, 2, 2, 3, 8, 9, 32]);
    }

    #[test]
    fn packing_orders_lexicographically_and_unpacks() {
        let dims = [5, 1, 300];
        let coords = vec![vec![4, 0], vec![0, 0], vec![2, 299]];
        let packing = Packing::new(&dims, &[2, 1, 0]);
        assert_eq!(packing.bits(), 12);
        let (a, b): (u64, u64) = (packing.pack(&coords, 0), packing.pack(&coords, 1));
        assert!(a < b);
        let mut got = Vec::new();
        packing.unpack(a, |mode, i| got.push((mode, i)));
        assert_eq!(got, [(2, 2), (1, 0), (0, 4)]);
        assert_eq!(packing.coordinate(b, 0), 299);
    }

    #[test]
    fn wide_tensors_need_several_groups() {
        let dims = [u32::MAX as usize; 8];
        let order: Vec<_> = (0..8).collect();
        let groups = Packing::groups(&dims, &order);
        assert_eq!(groups.iter().map(Packing::bits).collect::<Vec<_>>(), [128, 128]);
        assert_eq!(Packing::groups(&[1], &[0]).len(), 1);
    }
}
