//! Which addresses the `http` capability may connect to.
//!
//! A job is data that comes from outside, and a request made from inside a network reaches what the
//! job's author cannot: that is request forgery. So by default only addresses of the public internet
//! are allowed. The check is on the address that is connected to, after the name was resolved and
//! through every form that hides one address in another, and the connection goes to that very
//! address: a name that resolves differently the next time changes nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A block of addresses, `10.1.0.0/16` or `fd00::/8`; a plain address is a block of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Whether the block holds the address, which may be an IPv4 one in its IPv6 form.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, plain(address)) {
            (IpAddr::V4(base), IpAddr::V4(address)) => same_prefix(
                u128::from(base.to_bits()) << 96,
                u128::from(address.to_bits()) << 96,
                self.prefix_bits,
            ),
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                same_prefix(base.to_bits(), address.to_bits(), self.prefix_bits)
            }
            _ => false,
        }
    }
}

fn same_prefix(one: u128, other: u128, bits: u8) -> bool {
    bits == 0 || (one ^ other) >> (128 - u32::from(bits.min(128))) == 0
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_bits)
    }
}

/// The text is no block of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a block of addresses such as 10.1.0.0/16 or fd00::/8")]
pub struct InvalidNetwork;

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let base: IpAddr = address.parse().map_err(|_| InvalidNetwork)?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match bits {
            Some(bits) => bits.parse().map_err(|_| InvalidNetwork)?,
            None => most,
        };
        if prefix_bits > most {
            return Err(InvalidNetwork);
        }
        Ok(Self { base, prefix_bits })
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// The IPv4 address inside an IPv6 one that only stands for it.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// Why an address is not one of the public internet; `None` when it is.
pub fn not_public(address: IpAddr) -> Option<&'static str> {
    match plain(address) {
        IpAddr::V4(v4) => not_public_v4(v4),
        IpAddr::V6(v6) => not_public_v6(v6),
    }
}

fn not_public_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some("\"this\" network"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("private"),
        (100, 64..=127, _) => Some("shared (carrier) address space"),
        (127, ..) => Some("loopback"),
        (169, 254, _) => Some("link-local (cloud metadata is there)"),
        (192, 0, 0) | (192, 88, 99) => Some("kept for protocols"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("kept for documentation"),
        (198, 18..=19, _) => Some("kept for benchmarks"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved or broadcast"),
        _ => None,
    }
}

fn not_public_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    let [_, s1, s2, _, s4, s5, s6, s7] = segments;
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        // Translated to the IPv4 address at the end.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => not_public_v4(embedded(s6, s7)),
        [0x64, 0xff9b, 1, ..] => Some("local translation to IPv4"),
        // Tunnelled to the IPv4 address inside.
        [0x2002, ..] => not_public_v4(embedded(s1, s2)),
        [0x2001, 0, ..] => Some("a Teredo tunnel"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("kept for documentation"),
        [0x2001, 1..=0x1ff, ..] => Some("kept for protocols"),
        [0xfc00..=0xfdff, ..] => Some("unique local (cloud metadata is there)"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xfec0..=0xfeff, ..] => Some("site-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        // An ISATAP address carries an IPv4 one behind a fixed mark.
        _ if s4 & 0xfdff == 0 && s5 == 0x5efe => not_public_v4(embedded(s6, s7)),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("not a global unicast address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        for (address, public) in [
            ("93.184.216.34", true),
            ("8.8.8.8", true),
            ("172.15.0.1", true),
            ("172.32.0.1", true),
            ("100.63.0.1", true),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("10.0.0.1", false),
            ("127.0.0.1", false),
            ("127.255.255.254", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("192.168.1.1", false),
            ("100.100.100.200", false),
            ("192.0.0.192", false),
            ("198.18.0.1", false),
            ("224.0.0.1", false),
            ("239.255.255.255", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700::1111", true),
            ("2a00:1450:4001::200e", true),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:8.8.8.8", true),
            ("::127.0.0.1", false),
            ("64:ff9b::7f00:1", false),
            ("64:ff9b::808:808", true),
            ("64:ff9b:1::808:808", false),
            ("2002:7f00:1::", false),
            ("2002:808:808::", true),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("fc00::1", false),
            ("fd00:ec2::254", false),
            ("fe80::1", false),
            ("febf::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
            ("2a00::5efe:7f00:1", false),
            ("2a00::200:5efe:a00:1", false),
            ("5f00::1", false),
            ("100::1", false),
        ] {
            let found = not_public(address.parse().unwrap());
            assert_eq!(found.is_none(), public, "{address}: {found:?}");
        }
    }

    #[test]
    fn blocks_hold_what_their_prefix_says() {
        for (block, address, held) in [
            ("10.1.0.0/16", "10.1.255.255", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.1.0.0/16", "::ffff:10.1.2.3", true),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("0.0.0.0/0", "10.0.0.1", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
            ("::/0", "fe80::1", true),
            ("::1/128", "::1", true),
        ] {
            let network: Network = block.parse().unwrap();
            let found = network.contains(address.parse().unwrap());
            assert_eq!(found, held, "{block} {address}");
        }
        for bad in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0/8",
            "a/8",
            "10.0.0.0/",
            "10.0.0.0/-1",
        ] {
            assert_eq!(bad.parse::<Network>(), Err(InvalidNetwork), "{bad}");
        }
    }
}
