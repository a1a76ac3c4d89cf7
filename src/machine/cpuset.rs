//! Sets of processor numbers, in the notation of Linux: `0-3,8`.

use std::fmt;

use crate::error::{Error, Result};

/// The largest processor number that a list may name: far above any kernel's limit (8192), low enough that a
/// malformed list cannot ask for much memory.
const MAX_CPU: usize = (1 << 20) - 1;

/// A set of processor (or NUMA node) numbers as the operating system counts them, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(Vec<usize>);

impl CpuSet {
    /// No member.
    pub const EMPTY: Self = Self(Vec::new());

    /// The set written as `list`: numbers and ranges, separated by commas, `0-3,8`. The empty text is the empty set.
    ///
    /// # Errors
    /// [`Error::Argument`] with the first part that is neither a number nor a range.
    pub fn parse(list: &str) -> Result<Self> {
        if list.trim().is_empty() { Ok(Self::default()) } else { Ok(numbers(list)?.into_iter().collect()) }
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is a member.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The smallest member.
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }
}

/// The numbers of `list`, in its order; at least one.
pub(super) fn numbers(list: &str) -> Result<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse().ok().filter(|&n: &usize| n <= MAX_CPU);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => all.extend(first..=last),
            _ => {
                return Err(Error::argument(
                    "processor list",
                    format!("'{part}' in '{list}' is neither a number nor a range such as 0-3 (at most {MAX_CPU})"),
                ));
            }
        }
    }
    Ok(all)
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut all: Vec<_> = numbers.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }
}

/// Writes ranges as Linux does: `0-3,8`.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::CpuSet;

    #[test]
    fn lists_survive_a_round_trip() {
        for (text, members) in
            [("", vec![]), ("0", vec![0]), ("0-3", vec![0, 1, 2, 3]), ("0-1,8,10-12", vec![0, 1, 8, 10, 11, 12])]
        {
            let set = CpuSet::parse(text).unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), members);
            assert_eq!(set.to_string(), text);
        }
        assert_eq!(CpuSet::parse(" 5, 1-2,2\n").unwrap().to_string(), "1-2,5");
    }

    #[test]
    fn malformed_lists_name_the_part() {
        for (text, part) in
            [("0,x", "'x'"), ("3-1", "'3-1'"), ("1,,2", "''"), ("0-99999999", "0-99999999"), ("-1", "-1")]
        {
            let message = CpuSet::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
