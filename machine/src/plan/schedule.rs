//! When a trigger is due.
//!
//! Cron expressions have five or six fields (seconds first; five fields mean second 0) and an IANA time
//! zone. The cron crate reads them and says which days match; the walk through the zone is done here, so
//! that the rule for a change of the zone's offset is exact. There are two kinds of expressions:
//!
//! - **Elapsed**: the seconds, minutes or hours field begins with `*` (`*/15 * * * *`, `* 2 * * *`). Every
//!   real second whose local time matches is due. In a gap nothing is due, for no such local time comes; in
//!   a repeated hour each local time is due twice, once in each pass.
//! - **Fixed**: all three fields name their values (`0 2 * * *`, `30 1,2 * * *`, `0 9-17 * * *`). Each
//!   matching local time is due once. One that falls into a gap is due at the end of the gap, where several
//!   such times, and a time that stands at the end itself, are one instant. One that comes twice is due the
//!   first time.
//!
//! Invariants: the instants of a trigger are whole multiples of its own step (a second for cron) and strictly
//! increasing; going from one to the next never misses one and never gives one twice.
//!
//! Absent: the years field, and a look further ahead than [`MAX_YEARS_AHEAD`] years. An expression without a
//! match until then (30 February) has no next instant.

use std::collections::BTreeMap;

use croner::parser::{CronParser, Seconds, Year};
use croner::{Cron, CronComponent, Weekday};
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Timestamp, ToSpan};

use crate::Trigger;

/// How far ahead a match is looked for, in years. 29 February comes again after eight years at most.
pub const MAX_YEARS_AHEAD: i16 = 30;

/// Why a trigger cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The cron expression is malformed.
    #[error("cron expression {expression:?}: {why}")]
    Expression {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such time zone.
    #[error("time zone {timezone:?} is not in the IANA database")]
    TimeZone {
        /// Its name.
        timezone: String,
    },
}

/// Parsed cron expressions by expression and zone. Bounded.
#[derive(Debug, Default)]
pub struct Schedules {
    parsed: BTreeMap<String, BTreeMap<String, Parsed>>,
    count: usize,
}

const MAX_PARSED: usize = 20_000;

/// The due instants from one to another, both counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The last instant.
    pub last_ms: u64,
    /// How many.
    pub count: u64,
    /// The instant that follows.
    pub next_ms: Option<u64>,
}

impl Schedules {
    /// The first instant of a trigger after `after_ms`, all in milliseconds since the Unix epoch.
    ///
    /// `anchor_ms` is when the job was created: `every` counts from there. `None`: never again.
    ///
    /// # Errors
    /// The expression or the zone cannot be read.
    pub fn next_after(
        &mut self,
        trigger: &Trigger,
        anchor_ms: u64,
        after_ms: u64,
    ) -> Result<Option<u64>, ScheduleError> {
        match trigger {
            Trigger::Manual => Ok(None),
            Trigger::At { instant_ms } => Ok((*instant_ms > after_ms).then_some(*instant_ms)),
            Trigger::Every { interval_ms } => {
                Ok(next_of_interval(*interval_ms, anchor_ms, after_ms))
            }
            Trigger::Cron {
                expression,
                timezone,
            } => Ok(self.parsed(expression, timezone)?.next_after(after_ms)),
        }
    }

    /// Counts the instants of a trigger after `after_ms` up to `until_ms`. Takes a step a day, not an instant,
    /// where nothing is special about the day. `None` where there is no such instant.
    ///
    /// # Errors
    /// The expression or the zone cannot be read.
    pub fn count(
        &mut self,
        trigger: &Trigger,
        anchor_ms: u64,
        after_ms: u64,
        until_ms: u64,
    ) -> Result<Option<Counted>, ScheduleError> {
        let Some(first_ms) = self.next_after(trigger, anchor_ms, after_ms)? else {
            return Ok(None);
        };
        if first_ms > until_ms {
            return Ok(None);
        }
        let counted = match trigger {
            Trigger::Manual | Trigger::At { .. } => Counted {
                last_ms: first_ms,
                count: 1,
                next_ms: None,
            },
            Trigger::Every { interval_ms } => {
                let more = (until_ms - first_ms) / (*interval_ms).max(1);
                let last_ms = first_ms + more * interval_ms;
                Counted {
                    last_ms,
                    count: more + 1,
                    next_ms: last_ms.checked_add(*interval_ms),
                }
            }
            Trigger::Cron {
                expression,
                timezone,
            } => self
                .parsed(expression, timezone)?
                .count_from(first_ms, until_ms),
        };
        Ok(Some(counted))
    }

    fn parsed(&mut self, expression: &str, timezone: &str) -> Result<&mut Parsed, ScheduleError> {
        let known = self
            .parsed
            .get(expression)
            .is_some_and(|zones| zones.contains_key(timezone));
        if !known {
            let fresh = Parsed::new(expression, timezone)?;
            if self.count >= MAX_PARSED {
                self.parsed.clear();
                self.count = 0;
            }
            self.count += 1;
            let zones = self.parsed.entry(expression.to_owned()).or_default();
            zones.insert(timezone.to_owned(), fresh);
        }
        self.parsed
            .get_mut(expression)
            .and_then(|zones| zones.get_mut(timezone))
            .ok_or_else(|| ScheduleError::TimeZone {
                timezone: timezone.to_owned(),
            })
    }
}

/// A stretch of time in which a zone has one offset, in seconds since the Unix epoch. The end is excluded.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    start_s: i64,
    end_s: i64,
    offset: Offset,
}

#[derive(Debug)]
struct Parsed {
    cron: Cron,
    zone: TimeZone,
    /// Bit n is set where the field matches n.
    seconds: u64,
    minutes: u64,
    hours: u64,
    elapsed: bool,
    /// The stretch of the last question; it changes the speed of the next one and nothing else.
    stretch: Option<Stretch>,
}

impl Parsed {
    fn new(expression: &str, timezone: &str) -> Result<Self, ScheduleError> {
        let cron = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build()
            .parse(expression)
            .map_err(|error| ScheduleError::Expression {
                expression: expression.to_owned(),
                why: error.to_string(),
            })?;
        let zone = TimeZone::get(timezone).map_err(|_| ScheduleError::TimeZone {
            timezone: timezone.to_owned(),
        })?;
        let bits = |field: &CronComponent| {
            field
                .values()
                .into_iter()
                .filter(|value| *value < 64)
                .fold(0, |mask, value| mask | 1 << value)
        };
        let pattern = &cron.pattern;
        let parsed = Self {
            seconds: bits(&pattern.seconds),
            minutes: bits(&pattern.minutes),
            hours: bits(&pattern.hours),
            elapsed: [&pattern.seconds, &pattern.minutes, &pattern.hours]
                .iter()
                .any(|field| field.from_wildcard),
            stretch: None,
            cron,
            zone,
        };
        if parsed.seconds == 0 || parsed.minutes == 0 || parsed.hours == 0 {
            return Err(ScheduleError::Expression {
                expression: expression.to_owned(),
                why: "no time of day matches".to_owned(),
            });
        }
        Ok(parsed)
    }

    /// The first instant after `after_ms`. An expression that never fires again has none.
    fn next_after(&mut self, after_ms: u64) -> Option<u64> {
        let after_s = i64::try_from(after_ms / 1000).ok()?;
        let found_s = if self.elapsed {
            self.next_elapsed(after_s)
        } else {
            self.next_fixed(after_s)
        }?;
        u64::try_from(found_s).ok()?.checked_mul(1000)
    }

    /// Goes from stretch to stretch of one offset; within one, local time and real time go together.
    fn next_elapsed(&mut self, after_s: i64) -> Option<i64> {
        let mut from_s = after_s.checked_add(1)?;
        let mut limit = None;
        loop {
            let stretch = self.stretch(from_s)?;
            let local = stretch
                .offset
                .to_datetime(Timestamp::from_second(from_s).ok()?);
            let limit = *limit.get_or_insert(local.year().saturating_add(MAX_YEARS_AHEAD));
            if local.year() > limit {
                return None;
            }
            let last_local = Timestamp::from_second(stretch.end_s - 1)
                .map_or(DateTime::MAX, |end| stretch.offset.to_datetime(end));
            let last = last_local
                .date()
                .min(Date::new(limit, 12, 31).unwrap_or(Date::MAX));
            if let Some(found) = self.next_local(local, last)
                && let Ok(instant) = stretch.offset.to_timestamp(found)
                && instant.as_second() < stretch.end_s
            {
                return Some(instant.as_second());
            }
            from_s = stretch.end_s;
        }
    }

    /// Goes from one matching local time to the next; their instants never go back.
    fn next_fixed(&mut self, after_s: i64) -> Option<i64> {
        let stretch = self.stretch(after_s)?;
        let mut local = stretch
            .offset
            .to_datetime(Timestamp::from_second(after_s).ok()?);
        let last =
            Date::new(local.year().saturating_add(MAX_YEARS_AHEAD), 12, 31).unwrap_or(Date::MAX);
        loop {
            let found = self.next_local(local, last)?;
            let instant_s = self.first_instant(found)?;
            if instant_s > after_s {
                return Some(instant_s);
            }
            local = found.checked_add(1.second()).ok()?;
        }
    }

    /// The first instant at which a zone's clock shows this local time, or has gone past it.
    fn first_instant(&mut self, local: DateTime) -> Option<i64> {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => {
                Some(offset.to_timestamp(local).ok()?.as_second())
            }
            AmbiguousOffset::Fold { before, .. } => {
                Some(before.to_timestamp(local).ok()?.as_second())
            }
            AmbiguousOffset::Gap { after, .. } => {
                // Read with the later offset, a time in the gap is before the change.
                let before_s = after.to_timestamp(local).ok()?.as_second();
                Some(self.stretch(before_s)?.end_s)
            }
        }
    }

    /// The first matching local time from `from` on, none of the days after `last` looked at.
    fn next_local(&self, from: DateTime, last: Date) -> Option<DateTime> {
        let mut date = from.date();
        let mut time = from.time();
        while date <= last {
            let month = u32::try_from(date.month()).ok()?;
            if !self.cron.pattern.month_match(month).ok()? {
                date = date.last_of_month().tomorrow().ok()?;
                time = Time::midnight();
                continue;
            }
            if self.matches_day(date)?
                && let Some(found) = self.next_time(time)
            {
                return Some(date.to_datetime(found));
            }
            date = date.tomorrow().ok()?;
            time = Time::midnight();
        }
        None
    }

    fn matches_day(&self, date: Date) -> Option<bool> {
        let weekday = match date.weekday() {
            jiff::civil::Weekday::Sunday => Weekday::Sunday,
            jiff::civil::Weekday::Monday => Weekday::Monday,
            jiff::civil::Weekday::Tuesday => Weekday::Tuesday,
            jiff::civil::Weekday::Wednesday => Weekday::Wednesday,
            jiff::civil::Weekday::Thursday => Weekday::Thursday,
            jiff::civil::Weekday::Friday => Weekday::Friday,
            jiff::civil::Weekday::Saturday => Weekday::Saturday,
        };
        let month = u32::try_from(date.month()).ok()?;
        let day = u32::try_from(date.day()).ok()?;
        self.cron
            .pattern
            .day_match(i32::from(date.year()), month, day, weekday)
            .ok()
    }

    /// The first matching time of day from `from` on.
    fn next_time(&self, from: Time) -> Option<Time> {
        let first_second = lowest(self.seconds, 0)?;
        let first_minute = lowest(self.minutes, 0)?;
        let (hour, minute, second) = (from.hour(), from.minute(), from.second());
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = lowest(self.seconds, second)
            {
                return Time::new(hour, minute, second, 0).ok();
            }
            if let Some(minute) = lowest(self.minutes, minute + 1) {
                return Time::new(hour, minute, first_second, 0).ok();
            }
        }
        let hour = lowest(self.hours, hour + 1)?;
        Time::new(hour, first_minute, first_second, 0).ok()
    }

    /// The stretch of one offset that holds an instant.
    fn stretch(&mut self, at_s: i64) -> Option<Stretch> {
        if let Some(known) = self.stretch
            && (known.start_s..known.end_s).contains(&at_s)
        {
            return Some(known);
        }
        let at = Timestamp::from_second(at_s).ok()?;
        let offset = self.zone.to_offset(at);
        // Some transitions of the database change the name of a zone's time and not the offset.
        let next = self
            .zone
            .following(at)
            .find(|change| change.offset() != offset)
            .map_or(i64::MAX, |change| change.timestamp().as_second());
        let stretch = Stretch {
            start_s: at_s,
            end_s: next,
            offset,
        };
        self.stretch = Some(stretch);
        Some(stretch)
    }

    /// Counts from an instant, which is one, up to `until_ms`.
    fn count_from(&mut self, first_ms: u64, until_ms: u64) -> Counted {
        let mut counted = Counted {
            last_ms: first_ms,
            count: 1,
            next_ms: self.next_after(first_ms),
        };
        while let Some(next_ms) = counted.next_ms {
            if next_ms > until_ms {
                break;
            }
            let (last_ms, count) = self.whole_day(next_ms, until_ms).unwrap_or((next_ms, 1));
            counted = Counted {
                last_ms,
                count: counted.count + count,
                next_ms: self.next_after(last_ms),
            };
        }
        counted
    }

    /// The last instant and the number of instants of a day, if `first_ms` is its first instant, it ends before
    /// `until_ms` and the offset does not change in it.
    fn whole_day(&mut self, first_ms: u64, until_ms: u64) -> Option<(u64, u64)> {
        let first_s = i64::try_from(first_ms / 1000).ok()?;
        let until_s = i64::try_from(until_ms / 1000).ok()?;
        let stretch = self.stretch(first_s)?;
        let local = stretch
            .offset
            .to_datetime(Timestamp::from_second(first_s).ok()?);
        if Some(local.time()) != self.next_time(Time::midnight()) {
            return None;
        }
        let last = Time::new(
            highest(self.hours)?,
            highest(self.minutes)?,
            highest(self.seconds)?,
            0,
        )
        .ok()?;
        let instant = |time: Time| {
            let at = stretch.offset.to_timestamp(local.date().to_datetime(time));
            at.ok().map(Timestamp::as_second)
        };
        let (begin_s, last_s) = (instant(Time::midnight())?, instant(last)?);
        let end_s = begin_s.checked_add(24 * 3600)?;
        // A day's margin on both sides: a change of the offset touches the local times around it.
        let calm = self.stretch(begin_s - 24 * 3600)?.end_s > end_s + 24 * 3600;
        if !calm || last_s > until_s {
            return None;
        }
        let count = [self.hours, self.minutes, self.seconds]
            .iter()
            .map(|bits| u64::from(bits.count_ones()))
            .product();
        Some((u64::try_from(last_s).ok()?.checked_mul(1000)?, count))
    }
}

/// The lowest bit from a position on.
fn lowest(bits: u64, from: i8) -> Option<i8> {
    let from = u32::try_from(from).ok()?;
    let above = bits.checked_shr(from)?;
    let position = from + above.trailing_zeros();
    (above != 0).then(|| i8::try_from(position).ok()).flatten()
}

fn highest(bits: u64) -> Option<i8> {
    i8::try_from(63 - bits.leading_zeros().min(63)).ok()
}

fn next_of_interval(interval_ms: u64, anchor_ms: u64, after_ms: u64) -> Option<u64> {
    if interval_ms == 0 {
        return None;
    }
    let steps = match after_ms.checked_sub(anchor_ms) {
        None => 1,
        Some(elapsed_ms) => (elapsed_ms / interval_ms).checked_add(1)?,
    };
    anchor_ms.checked_add(steps.checked_mul(interval_ms)?)
}
