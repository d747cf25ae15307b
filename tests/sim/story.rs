//! The readable story of a run: what mattered, in order, in few words. The last of it is told when a run
//! fails.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::{clock, trace};

const KEEP: usize = 4_000;

thread_local! {
    static STORY: RefCell<VecDeque<(u64, String)>> = const { RefCell::new(VecDeque::new()) };
}

/// Begins a run.
pub fn reset() {
    STORY.with_borrow_mut(VecDeque::clear);
}

/// Adds a sentence.
pub fn tell(words: String) {
    trace::line(format_args!("* {words}"));
    STORY.with_borrow_mut(|story| {
        if story.len() == KEEP {
            story.pop_front();
        }
        story.push_back((clock::true_us(), words));
    });
}

/// The last sentences, oldest first: so many about entries of the log, which begin with `[`, and so many others.
pub fn last(entries: usize, others: usize) -> Vec<String> {
    STORY.with_borrow(|story| {
        let mut left = [others, entries];
        let wanted = |(_, words): &&(u64, String)| {
            let left = &mut left[usize::from(words.starts_with('['))];
            let wanted = *left > 0;
            *left = left.saturating_sub(1);
            wanted
        };
        let told = story.iter().rev().filter(wanted);
        let told = told.map(|(us, words)| format!("{:>10.3} s  {words}", *us as f64 / 1e6));
        let mut told: Vec<String> = told.collect();
        told.reverse();
        told
    })
}

/// Adds a sentence to the story, in the words of `format!`.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => { $crate::story::tell(format!($($words)*)) };
}
