//! `plan::schedule` against a reference that walks second by second through the zone and matches the fields
//! by itself.

// A test stops where something is not as it must be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use proptest::prelude::*;
use tenure_machine::Trigger;
use tenure_machine::plan::schedule::Schedules;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// Zones and, for each, a moment within a day and a half of a change of its offset.
const CHANGES: [(&str, &str); 14] = [
    ("Europe/Berlin", "2026-03-28T20:00:00Z"),
    ("Europe/Berlin", "2026-10-24T20:00:00Z"),
    ("America/New_York", "2026-03-08T02:00:00Z"),
    ("America/New_York", "2026-11-01T00:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T10:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T10:00:00Z"),
    ("America/St_Johns", "2006-10-28T20:00:00Z"),
    ("America/St_Johns", "2006-04-01T20:00:00Z"),
    ("Africa/Cairo", "2026-04-23T18:00:00Z"),
    ("America/Santiago", "2026-09-05T20:00:00Z"),
    ("Pacific/Apia", "2011-12-29T20:00:00Z"),
    ("Asia/Kolkata", "2026-06-01T00:00:00Z"),
    ("UTC", "2026-02-28T10:00:00Z"),
    ("Asia/Pyongyang", "2018-05-04T10:00:00Z"),
];

/// A field as text, what it matches, and whether it begins with a `*`.
#[derive(Clone, Debug)]
struct Field {
    text: String,
    values: Vec<i8>,
    star: bool,
}

fn field(low: i8, high: i8) -> impl Strategy<Value = Field> {
    let all = move || (low..=high).collect::<Vec<_>>();
    prop_oneof![
        3 => Just(Field { text: "*".into(), values: all(), star: true }),
        2 => (2i8..=30).prop_map(move |step| Field {
            text: format!("*/{step}"),
            values: (low..=high).step_by(step as usize).collect(),
            star: true,
        }),
        4 => (low..=high).prop_map(|value| Field {
            text: value.to_string(),
            values: vec![value],
            star: false,
        }),
        2 => (low..=high, low..=high).prop_map(|(a, b)| Field {
            text: format!("{}-{}", a.min(b), a.max(b)),
            values: (a.min(b)..=a.max(b)).collect(),
            star: false,
        }),
        2 => prop::collection::btree_set(low..=high, 2..4).prop_map(|set| Field {
            text: set.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            values: set.into_iter().collect(),
            star: false,
        }),
    ]
}

#[derive(Clone, Debug)]
struct Expression {
    fields: [Field; 6],
}

impl Expression {
    fn text(&self) -> String {
        let texts: Vec<_> = self
            .fields
            .iter()
            .map(|field| field.text.as_str())
            .collect();
        texts.join(" ")
    }

    fn elapsed(&self) -> bool {
        self.fields[..3].iter().any(|field| field.star)
    }

    fn matches(&self, local: DateTime) -> bool {
        let has = |field: usize, value: i8| self.fields[field].values.contains(&value);
        let weekday = local.weekday().to_sunday_zero_offset();
        // The usual rule of cron: of day and weekday one suffices, unless one of them is `*`.
        let day = match (self.fields[3].text == "*", self.fields[5].text == "*") {
            (true, true) => true,
            (true, false) => has(5, weekday),
            (false, true) => has(3, local.day()),
            (false, false) => has(3, local.day()) || has(5, weekday),
        };
        has(0, local.second())
            && has(1, local.minute())
            && has(2, local.hour())
            && has(4, local.month())
            && day
    }
}

/// The due seconds after one and up to another, by looking at each.
fn reference(expression: &Expression, zone: &TimeZone, after_s: i64, until_s: i64) -> Vec<i64> {
    if expression.elapsed() {
        return (after_s + 1..=until_s)
            .filter(|second| {
                let instant = Timestamp::from_second(*second).unwrap();
                expression.matches(zone.to_datetime(instant))
            })
            .collect();
    }
    // Each local time once, where it first comes, or where the clock goes past it.
    let day = 26 * 3600;
    let mut found = Vec::new();
    let mut local = zone.to_datetime(Timestamp::from_second(after_s - day).unwrap());
    let end = zone.to_datetime(Timestamp::from_second(until_s + day).unwrap());
    while local < end {
        if expression.matches(local) {
            found.push(first_second(zone, local));
        }
        local = local
            .checked_add(jiff::SignedDuration::from_secs(1))
            .unwrap();
    }
    found.sort_unstable();
    found.dedup();
    found.retain(|second| (after_s + 1..=until_s).contains(second));
    found
}

fn first_second(zone: &TimeZone, local: DateTime) -> i64 {
    let ambiguous = zone.to_ambiguous_timestamp(local);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
            ambiguous.earlier().unwrap().as_second()
        }
        AmbiguousOffset::Gap { .. } => {
            // Walk up to the first second whose local time is past the one that never comes.
            let mut second = ambiguous.earlier().unwrap().as_second();
            while zone.to_datetime(Timestamp::from_second(second).unwrap()) < local {
                second += 1;
            }
            second
        }
    }
}

fn expressions() -> impl Strategy<Value = Expression> {
    let day = prop_oneof![4 => Just(None), 1 => field(1, 28).prop_map(Some)];
    let weekday = prop_oneof![4 => Just(None), 1 => field(0, 6).prop_map(Some)];
    let star = |low: i8, high: i8| Field {
        text: "*".into(),
        values: (low..=high).collect(),
        star: true,
    };
    (field(0, 59), field(0, 59), field(0, 23), day, weekday).prop_map(
        move |(second, minute, hour, day, weekday)| Expression {
            fields: [
                second,
                minute,
                hour,
                day.unwrap_or_else(|| star(1, 31)),
                star(1, 12),
                weekday.unwrap_or_else(|| star(0, 6)),
            ],
        },
    )
}

fn trigger(expression: &str, timezone: &str) -> Trigger {
    Trigger::Cron {
        expression: expression.into(),
        timezone: timezone.into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every due second of two days around a change of the offset is found, once, in order; and counting them
    /// gives the same as walking them.
    #[test]
    fn every_due_second_is_found_once(
        expression in expressions(),
        (timezone, start) in prop::sample::select(CHANGES.to_vec()),
        skip_s in 0i64..20_000,
    ) {
        let zone = TimeZone::get(timezone).unwrap();
        let after_s = start.parse::<Timestamp>().unwrap().as_second() + skip_s;
        let until_s = after_s + 40 * 3600;
        let expected = reference(&expression, &zone, after_s, until_s);
        let mut schedules = Schedules::default();
        let trigger = trigger(&expression.text(), timezone);
        let (after_ms, until_ms) = (after_s as u64 * 1000 + 500, until_s as u64 * 1000);
        let mut found = Vec::new();
        let mut at_ms = after_ms;
        while let Some(next_ms) = schedules.next_after(&trigger, 0, at_ms).unwrap() {
            prop_assert!(next_ms > at_ms);
            prop_assert_eq!(next_ms % 1000, 0);
            if next_ms > until_ms {
                break;
            }
            found.push((next_ms / 1000) as i64);
            at_ms = next_ms;
        }
        prop_assert_eq!(&found, &expected, "{} in {}", expression.text(), timezone);
        // What was asked before changes nothing.
        let fresh = Schedules::default().next_after(&trigger, 0, after_ms).unwrap();
        let again = schedules.next_after(&trigger, 0, after_ms).unwrap();
        prop_assert_eq!(fresh, again);
        let counted = schedules.count(&trigger, 0, after_ms, until_ms).unwrap();
        prop_assert_eq!(counted.map_or(0, |counted| counted.count), expected.len() as u64);
        if let Some(counted) = counted {
            prop_assert_eq!(counted.last_ms, *expected.last().unwrap() as u64 * 1000);
            prop_assert_eq!(counted.next_ms, schedules.next_after(&trigger, 0, until_ms).unwrap());
        }
    }
}

/// The instants of a month, a year, a leap day: counting in steps of a day gives what walking gives.
#[test]
fn counting_is_walking() {
    let start_ms = 1_767_225_600_000;
    let until_ms = start_ms + 366 * 86_400_000 + 12_345_678;
    for (expression, timezone) in [
        ("*/10 * * * *", "Europe/Berlin"),
        ("0 */2 * * *", "America/New_York"),
        ("15,45 1-3 * * *", "Australia/Lord_Howe"),
        ("0 30 2 * * *", "Africa/Cairo"),
        ("*/20 9-17 * * 1-5", "UTC"),
        ("0 0 1 * *", "Asia/Kolkata"),
    ] {
        let mut schedules = Schedules::default();
        let trigger = trigger(expression, timezone);
        let (mut at_ms, mut count) = (start_ms, 0);
        while let Some(next_ms) = schedules.next_after(&trigger, 0, at_ms).unwrap() {
            if next_ms > until_ms {
                break;
            }
            (at_ms, count) = (next_ms, count + 1);
        }
        let counted = schedules
            .count(&trigger, 0, start_ms, until_ms)
            .unwrap()
            .unwrap();
        assert_eq!(
            (counted.count, counted.last_ms),
            (count, at_ms),
            "{expression}"
        );
    }
}

/// Expressions that match seldom or never come to an end at once.
#[test]
fn sparse_expressions() {
    let mut schedules = Schedules::default();
    let from_ms = 1_767_225_600_000; // 2026-01-01
    let mut next = |expression: &str, timezone: &str, from_ms: u64| {
        schedules
            .next_after(&trigger(expression, timezone), 0, from_ms)
            .unwrap()
            .map(|ms| Timestamp::from_millisecond(ms as i64).unwrap().to_string())
    };
    let leap = next("0 0 29 2 *", "UTC", from_ms);
    assert_eq!(leap.as_deref(), Some("2028-02-29T00:00:00Z"));
    let century = next("0 0 29 2 *", "UTC", 3_981_312_000_000); // 2096-02-29
    assert_eq!(century.as_deref(), Some("2104-02-29T00:00:00Z"));
    for timezone in ["UTC", "Europe/Berlin"] {
        for never in [
            "0 0 30 2 *",
            "* * 30 2 *",
            "* * * 31 4 *",
            "0 0 31 6,9,11 *",
        ] {
            assert_eq!(next(never, timezone, from_ms), None, "{never}");
        }
    }
    assert_eq!(
        next("0 0 L * *", "UTC", from_ms).as_deref(),
        Some("2026-01-31T00:00:00Z")
    );
    assert_eq!(
        next("0 0 * * FRI#2", "UTC", from_ms).as_deref(),
        Some("2026-01-09T00:00:00Z")
    );
    assert_eq!(next("0 0 * * *", "UTC", u64::MAX), None);
    assert_eq!(
        next("* * * * *", "Europe/Berlin", 253_402_300_799_000),
        None
    );
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let mut schedules = Schedules::default();
    for (expression, timezone) in [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("60 * * * *", "UTC"),
        ("* * * * * * *", "UTC"),
        ("* * * * *", "Mars/Olympus"),
        ("a b c d e", "UTC"),
    ] {
        let result = schedules.next_after(&trigger(expression, timezone), 0, 0);
        assert!(result.is_err(), "{expression:?} in {timezone}: {result:?}");
    }
}

#[test]
fn every_counts_from_its_anchor() {
    let mut schedules = Schedules::default();
    let every = |interval_ms| Trigger::Every { interval_ms };
    let mut next = |interval_ms, anchor_ms, after_ms| {
        schedules
            .next_after(&every(interval_ms), anchor_ms, after_ms)
            .unwrap()
    };
    assert_eq!(next(10_000, 300, 300), Some(10_300));
    assert_eq!(next(10_000, 300, 10_299), Some(10_300));
    assert_eq!(next(10_000, 300, 10_300), Some(20_300));
    assert_eq!(next(10_000, 300, 0), Some(10_300));
    assert_eq!(next(1, 0, u64::MAX), None);
    assert_eq!(next(u64::MAX, 1, 0), None);
    assert_eq!(next(0, 0, 0), None);
}
