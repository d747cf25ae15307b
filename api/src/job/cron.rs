//! What a cron expression may hold. Every fault names its field, what it holds and what it may hold.
//!
//! The scheduler reads expressions with a crate that takes more than this, some of it in a surprising way: a
//! step beyond its range, the name of a month as a weekday, an empty item of a list. What is let through here
//! means what [the page of job files](../../../docs/jobs.md) says.
//!
//! Fields: five, or six with seconds first; no year. Lists, ranges, steps of `*` or of a range. Names of
//! months and weekdays. `?` for `*` in the two day fields. `L`, `LW` and `15W` for the day of the month; `5L`
//! and `5#2` for the weekday. `@daily` and its like are written out.

use super::decode::shown;

/// The short forms, and what they stand for.
const SHORT_FORMS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The occurrences of a weekday in a month.
const MOST_OCCURRENCES: u32 = 5;

/// One of the six fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
}

/// In the order of an expression with seconds.
const FIELDS: [Field; 6] = [
    Field::Second,
    Field::Minute,
    Field::Hour,
    Field::Day,
    Field::Month,
    Field::Weekday,
];

/// Checks an expression. Gives it back with its fields one space apart, and a short form written out.
pub(crate) fn canonical(text: &str) -> Result<String, String> {
    let text = text.trim_ascii();
    if text.starts_with('@') {
        let known = |(name, _): &&(&str, &str)| name.eq_ignore_ascii_case(text);
        return match SHORT_FORMS.iter().find(known) {
            Some((_, long)) => Ok((*long).to_owned()),
            None => {
                let names = SHORT_FORMS.map(|(name, _)| name).join(", ");
                Err(format!(
                    "\"{}\" is not a short form; there are {names}. For an interval use `every`",
                    shown(text)
                ))
            }
        };
    }
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    if !(5..=6).contains(&fields.len()) {
        return Err(format!(
            "must have 5 fields (minute hour day month weekday) or 6 (second first), found {}",
            fields.len()
        ));
    }
    let kinds = FIELDS.iter().skip(FIELDS.len() - fields.len());
    for (field, text) in kinds.zip(&fields) {
        field.check(text).map_err(|(item, why)| {
            format!(
                "the {} field cannot hold \"{}\"{why}; it takes {}",
                field.name(),
                shown(&item),
                field.takes()
            )
        })?;
    }
    Ok(fields.join(" "))
}

/// What is wrong, and why if there is more to say.
type Fault = (String, &'static str);

impl Field {
    const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day-of-month",
            Self::Month => "month",
            Self::Weekday => "day-of-week",
        }
    }

    /// What a number may be, both ends counted.
    const fn range(self) -> (u32, u32) {
        match self {
            Self::Second | Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::Day => (1, 31),
            Self::Month => (1, 12),
            // Sunday is 0, and 7 too.
            Self::Weekday => (0, 7),
        }
    }

    /// The longest step of `*`: with a longer one the field would hold one value.
    const fn longest_step(self) -> u32 {
        match self {
            Self::Weekday => 6,
            _ => {
                let (low, high) = self.range();
                high - low
            }
        }
    }

    fn takes(self) -> String {
        let (low, high) = self.range();
        let step = self.longest_step();
        let own = match self {
            Self::Second | Self::Minute | Self::Hour => "",
            Self::Month => ", JAN to DEC",
            Self::Day => {
                ", ?, L (the last day), LW (the last Monday to Friday), 15W (the one nearest the 15th)"
            }
            Self::Weekday => ", SUN to SAT, ?, 5L (the last Friday), 5#2 (the second Friday)",
        };
        format!(
            "{low} to {high}, *, a-b, */n and a-b/n with n from 1 to {step}{own}, and lists with commas"
        )
    }

    fn check(self, text: &str) -> Result<(), Fault> {
        let days = matches!(self, Self::Day | Self::Weekday);
        if text == "*" || (days && text == "?") {
            return Ok(());
        }
        let items: Vec<String> = text.split(',').map(str::to_ascii_uppercase).collect();
        for item in &items {
            self.check_item(item)?;
        }
        let has = |wanted: &str| items.iter().any(|item| item == wanted);
        if self == Self::Day && has("L") && has("LW") {
            return Err((text.to_owned(), ": L and LW exclude each other"));
        }
        Ok(())
    }

    fn check_item(self, item: &str) -> Result<(), Fault> {
        let fault = |why| Err((item.to_owned(), why));
        if item.is_empty() {
            return fault(": an item of the list is empty");
        }
        let (range, step) = match item.split_once('/') {
            None => (item, None),
            Some((range, step)) => (range, Some(number(step))),
        };
        if range == "*" {
            return match step {
                Some(Some(step)) if (1..=self.longest_step()).contains(&step) => Ok(()),
                Some(_) => fault(": the step is not in its range"),
                None => fault(": * stands alone"),
            };
        }
        if let Some((first, last)) = range.split_once('-') {
            let (Some(first), Some(last)) = (self.value(first), self.last(last)) else {
                return fault("");
            };
            if first > last {
                return fault(": the range ends before it begins");
            }
            return match step {
                None => Ok(()),
                Some(Some(step)) if step >= 1 && step <= last - first => Ok(()),
                Some(_) => fault(": the step is longer than the range, or none"),
            };
        }
        if step.is_some() {
            return fault(": a step needs a range or *");
        }
        if self.value(item).is_some() || self.is_special(item) {
            return Ok(());
        }
        fault("")
    }

    /// A number, or a name.
    fn value(self, text: &str) -> Option<u32> {
        let (low, high) = self.range();
        let named = |names: &[&str], first: u32| {
            let place = names.iter().position(|name| *name == text)?;
            u32::try_from(place).ok().map(|place| place + first)
        };
        match self {
            Self::Month => named(&MONTHS, 1),
            Self::Weekday => named(&WEEKDAYS, 0),
            _ => None,
        }
        .or_else(|| number(text).filter(|value| (low..=high).contains(value)))
    }

    /// The end of a range: a Sunday there is the one after Saturday.
    fn last(self, text: &str) -> Option<u32> {
        match (self, text) {
            (Self::Weekday, "SUN") => Some(7),
            _ => self.value(text),
        }
    }

    fn is_special(self, item: &str) -> bool {
        match self {
            Self::Day => {
                let nearest = |day: &str| self.value(day).is_some();
                matches!(item, "L" | "LW") || item.strip_suffix('W').is_some_and(nearest)
            }
            Self::Weekday => {
                let nth = |(day, nth): (&str, &str)| {
                    let occurs = |nth| (1..=MOST_OCCURRENCES).contains(&nth);
                    self.value(day).is_some() && number(nth).is_some_and(occurs)
                };
                let last = |day: &str| self.value(day).is_some();
                item.strip_suffix('L').is_some_and(last) || item.split_once('#').is_some_and(nth)
            }
            _ => false,
        }
    }
}

/// One or two digits.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_page_promises_is_taken() {
        for text in [
            "* * * * *",
            "0 2 * * *",
            "*/59 * * * * *",
            "0 */23 * * *",
            "0 0 */30 */11 */6",
            "5,10-20,30-59/29 0 1 1 *",
            "0 0 * JAN,Mar-dec mon-FRI",
            "0 0 * * FRI-SUN",
            "0 0 * * 5-7",
            "0 0 ? * MON",
            "0 0 1 * ?",
            "0 0 L * *",
            "0 0 LW * *",
            "0 0 1,L * *",
            "0 0 15W * *",
            "0 0 * * 5L",
            "0 0 * * friL",
            "0 0 * * 5#2",
            "0 0 * * MON#1,MON#3",
        ] {
            assert_eq!(canonical(text), Ok(text.to_owned()));
        }
    }

    #[test]
    fn short_forms_are_written_out() {
        assert_eq!(canonical(" @daily "), Ok("0 0 * * *".into()));
        assert_eq!(canonical("@Hourly"), Ok("0 * * * *".into()));
        for text in ["@reboot", "@every 5m", "@"] {
            let said = canonical(text).unwrap_err();
            assert!(
                said.contains("@daily") && said.contains("`every`"),
                "{said}"
            );
        }
        for (_, long) in SHORT_FORMS {
            assert_eq!(canonical(long).as_deref(), Ok(long));
        }
    }

    #[test]
    fn a_fault_names_its_field_what_it_holds_and_what_it_may_hold() {
        for (text, field, item, allowed) in [
            ("61 * * * *", "minute", "61", "0 to 59"),
            ("61 * * * * *", "second", "61", "0 to 59"),
            ("0 24 * * *", "hour", "24", "0 to 23"),
            ("0 0 0 * *", "day-of-month", "0", "1 to 31"),
            ("0 0 1 13 *", "month", "13", "1 to 12"),
            ("0 0 * * 8", "day-of-week", "8", "0 to 7"),
            // Steps.
            ("*/100 * * * *", "minute", "*/100", "n from 1 to 59"),
            ("*/60 * * * *", "minute", "*/60", "n from 1 to 59"),
            ("0 */24 * * *", "hour", "*/24", "n from 1 to 23"),
            ("0 0 */31 * *", "day-of-month", "*/31", "n from 1 to 30"),
            ("0 0 1 */12 *", "month", "*/12", "n from 1 to 11"),
            ("0 0 * * */7", "day-of-week", "*/7", "n from 1 to 6"),
            ("*/0 * * * *", "minute", "*/0", "n from 1 to 59"),
            ("*/ * * * *", "minute", "*/", "n from 1 to 59"),
            ("/5 * * * *", "minute", "/5", "a step needs a range"),
            ("5/10 * * * *", "minute", "5/10", "a step needs a range"),
            (
                "10-20/11 * * * *",
                "minute",
                "10-20/11",
                "longer than the range",
            ),
            ("0-59/5/5 * * * *", "minute", "0-59/5/5", "a-b/n"),
            // Ranges and lists.
            ("20-10 * * * *", "minute", "20-10", "ends before it begins"),
            (
                "0 0 * * FRI-MON",
                "day-of-week",
                "FRI-MON",
                "ends before it begins",
            ),
            ("1-2-3 * * * *", "minute", "1-2-3", "a-b"),
            ("-5 * * * *", "minute", "-5", "a-b"),
            ("1,,2 * * * *", "minute", "", "is empty"),
            (", * * * *", "minute", "", "is empty"),
            ("*,5 * * * *", "minute", "*", "stands alone"),
            // Names, and what belongs to another field.
            ("0 0 * * JAN", "day-of-week", "JAN", "SUN to SAT"),
            ("0 0 1 MON *", "month", "MON", "JAN to DEC"),
            ("0 0 * * MOO", "day-of-week", "MOO", "SUN to SAT"),
            ("0 0 * * MONDAY", "day-of-week", "MONDAY", "SUN to SAT"),
            ("0 0 * 1MAY *", "month", "1MAY", "JAN to DEC"),
            ("? * * * *", "minute", "?", "0 to 59"),
            ("0 0 1 ? *", "month", "?", "1 to 12"),
            ("0 L * * *", "hour", "L", "0 to 23"),
            ("0 0 * * L", "day-of-week", "L", "the last Friday"),
            ("0 0 L-3 * *", "day-of-month", "L-3", "the last day"),
            ("0 0 L,LW * *", "day-of-month", "L,LW", "exclude each other"),
            ("0 0 W * *", "day-of-month", "W", "15W"),
            ("0 0 32W * *", "day-of-month", "32W", "15W"),
            ("0 0 1-5W * *", "day-of-month", "1-5W", "15W"),
            ("0 0 * * 5W", "day-of-week", "5W", "5#2"),
            ("0 0 5#2 * *", "day-of-month", "5#2", "15W"),
            ("0 0 * * 5#0", "day-of-week", "5#0", "5#2"),
            ("0 0 * * 5#6", "day-of-week", "5#6", "5#2"),
            ("0 0 * * 1-5#2", "day-of-week", "1-5#2", "5#2"),
            ("0 0 13 * +FRI", "day-of-week", "+FRI", "SUN to SAT"),
            ("001 * * * *", "minute", "001", "0 to 59"),
        ] {
            let said = canonical(text).unwrap_err();
            let start = format!("the {field} field cannot hold \"{item}\"");
            assert!(said.starts_with(&start), "{text}: {said}");
            assert!(said.contains(allowed), "{text}: {said}");
        }
    }
}
