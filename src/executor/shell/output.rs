//! What a task writes: cut into lines, bounded in memory, and kept at its end.
//!
//! Invariant: however much a task writes, and whatever it writes, no more is held than one unfinished
//! line a stream and the tail.

use std::collections::VecDeque;

/// The longest line that is passed on whole, in bytes. A longer one comes in pieces.
pub const MAX_LINE_BYTES: usize = 4 * 1024;

/// Cuts a stream of bytes into lines. What is not UTF-8 is replaced.
#[derive(Debug, Default)]
pub struct LineCutter {
    pending: Vec<u8>,
}

impl LineCutter {
    /// Takes more bytes and passes on every line that is whole now.
    pub fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (body, ended) = match part.strip_suffix(b"\n") {
                Some(body) => (body, true),
                None => (part, false),
            };
            self.extend(body, &mut line);
            if ended {
                self.finish_line(&mut line);
            }
        }
    }

    /// Passes on what is left after the end of the stream.
    pub fn finish(&mut self, mut line: impl FnMut(&str)) {
        if !self.pending.is_empty() {
            self.finish_line(&mut line);
        }
    }

    fn extend(&mut self, mut body: &[u8], line: &mut impl FnMut(&str)) {
        while self.pending.len() + body.len() > MAX_LINE_BYTES {
            let room = MAX_LINE_BYTES.saturating_sub(self.pending.len());
            let (fits, rest) = body.split_at(room.min(body.len()));
            self.pending.extend_from_slice(fits);
            body = rest;
            let cut = character_boundary(&self.pending);
            let tail = self.pending.split_off(cut);
            line(&String::from_utf8_lossy(&self.pending));
            self.pending = tail;
        }
        self.pending.extend_from_slice(body);
    }

    fn finish_line(&mut self, line: &mut impl FnMut(&str)) {
        let whole = self.pending.strip_suffix(b"\r").unwrap_or(&self.pending);
        line(&String::from_utf8_lossy(whole));
        self.pending.clear();
    }
}

/// Where to cut full bytes so that no character is cut in two. Never zero.
fn character_boundary(bytes: &[u8]) -> usize {
    let unfinished = bytes
        .iter()
        .rev()
        .take(3)
        .position(|byte| byte & 0b1100_0000 != 0b1000_0000);
    match unfinished.map(|back| bytes.len() - 1 - back) {
        // The last character starts here; it stays whole if it is not.
        Some(start)
            if start > 0
                && std::str::from_utf8(bytes.get(start..).unwrap_or_default()).is_err() =>
        {
            start
        }
        _ => bytes.len(),
    }
}

/// The end of what was written.
#[derive(Debug)]
pub struct Tail {
    kept: VecDeque<u8>,
    most_bytes: usize,
    dropped: bool,
}

impl Tail {
    /// Keeps the last `most_bytes`.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            most_bytes,
            dropped: false,
        }
    }

    /// Adds what was written.
    pub fn push(&mut self, bytes: &[u8]) {
        let skip = bytes.len().saturating_sub(self.most_bytes);
        let bytes = bytes.get(skip..).unwrap_or_default();
        let over = (self.kept.len() + bytes.len()).saturating_sub(self.most_bytes);
        self.dropped |= over > 0 || skip > 0;
        self.kept.drain(..over.min(self.kept.len()));
        self.kept.extend(bytes);
    }

    /// Whether something was written before what is kept.
    pub fn dropped(&self) -> bool {
        self.dropped
    }

    /// What is kept, without a character that was cut at its start.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.kept.iter().copied().collect();
        let start = if self.dropped {
            let cut = bytes
                .iter()
                .take(3)
                .take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000);
            cut.count()
        } else {
            0
        };
        let mut text = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned();
        // Replacement characters are longer than what they replace.
        while text.len() > self.most_bytes {
            text.remove(0);
        }
        text
    }

    /// The last line that is not empty, shortened to `most_bytes`.
    pub fn last_line(&self, most_bytes: usize) -> Option<String> {
        let text = self.text();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        let mut end = line.len().min(most_bytes);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.get(..end).map(|line| line.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut cutter = LineCutter::default();
        for chunk in chunks {
            cutter.push(chunk, |line| lines.push(line.to_owned()));
            assert!(cutter.pending.len() <= MAX_LINE_BYTES);
        }
        cutter.finish(|line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn lines_survive_any_cut_between_chunks() {
        let lines = cut(&[b"one\ntw", b"o\r\n", b"\n", "gr\u{fc}n".as_bytes()]);
        assert_eq!(lines, ["one", "two", "", "gr\u{fc}n"]);
        assert!(cut(&[]).is_empty());
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(cut(&[b"a\xff\xfeb\n"]), ["a\u{fffd}\u{fffd}b"]);
    }

    #[test]
    fn an_endless_line_comes_in_whole_characters() {
        let text = "\u{20ac}".repeat(MAX_LINE_BYTES);
        let lines = cut(&[text.as_bytes()]);
        assert_eq!(lines.concat(), text);
        assert!(lines.iter().all(|line| line.len() <= MAX_LINE_BYTES));
        let garbage = vec![0x80_u8; 3 * MAX_LINE_BYTES];
        assert_eq!(cut(&[&garbage]).len(), 3);
    }

    #[test]
    fn the_tail_is_bounded_and_starts_at_a_character() {
        let mut tail = Tail::new(8);
        tail.push(b"1234");
        assert!(!tail.dropped());
        tail.push("\u{20ac}\u{20ac}\u{20ac}".as_bytes());
        assert!(tail.dropped());
        assert_eq!(tail.text(), "\u{20ac}\u{20ac}");
        tail.push(&[0xff; 100]);
        assert!(tail.text().len() <= 8);
        let mut none = Tail::new(0);
        none.push(b"x");
        assert_eq!(none.text(), "");
    }

    #[test]
    fn the_last_line_tells_why() {
        let mut tail = Tail::new(100);
        tail.push(b"start\nrsync: connection refused\n\n");
        assert_eq!(
            tail.last_line(100).as_deref(),
            Some("rsync: connection refused")
        );
        assert_eq!(tail.last_line(5).as_deref(), Some("rsync"));
        assert_eq!(Tail::new(9).last_line(5), None);
    }
}
