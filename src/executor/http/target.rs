//! Where a request goes: a URL taken apart, and what the operator allows of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use hyper::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::addresses::{Network, not_public};
use crate::executor::pattern::Pattern;

/// The most addresses of one name that are looked at.
const MAX_ADDRESSES: usize = 32;
/// The longest URL, in bytes.
pub const MAX_URL_BYTES: usize = 8 * 1024;

/// What `http` tasks may reach on this executor. Part of its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpRules {
    /// Whether there is the capability at all. On unless switched off.
    pub enabled: bool,
    /// Hosts that may be reached whatever their address: `name`, `*.name`, `name:port`, `[::1]:port`.
    pub allow_hosts: Vec<HostRule>,
    /// Blocks of addresses that may be reached besides the public internet.
    pub allow_networks: Vec<Network>,
}

impl Default for HttpRules {
    fn default() -> Self {
        Self {
            enabled: true,
            allow_hosts: Vec::new(),
            allow_networks: Vec::new(),
        }
    }
}

/// A host, or a pattern of hosts, with or without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    host: Pattern,
    port: Option<u16>,
}

impl HostRule {
    fn matches(&self, target: &Target) -> bool {
        self.host.matches(&target.host) && self.port.is_none_or(|port| port == target.port)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = bracketed(&self.host.to_string());
        match self.port {
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(&host),
        }
    }
}

/// The text is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a host such as db.internal, *.example.org, 127.0.0.1:8080 or [::1]:8080")]
pub struct InvalidHost;

impl FromStr for HostRule {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or(InvalidHost)?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(InvalidHost),
            }
        } else {
            match text.split_once(':') {
                // More than one colon: an IPv6 address without a port.
                Some((_, rest)) if rest.contains(':') => (text, None),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        if host.contains(['/', '@', ' ']) {
            return Err(InvalidHost);
        }
        let port = port.map(|port| port.parse().map_err(|_| InvalidHost));
        Ok(Self {
            host: Pattern::new(host.to_ascii_lowercase()).map_err(|_| InvalidHost)?,
            port: port.transpose()?,
        })
    }
}

impl Serialize for HostRule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A URL of `http` or `https`, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether the connection is encrypted.
    pub https: bool,
    /// The host in lower case, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path with its query.
    pub path: String,
}

/// Why a URL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The URL itself.
    #[error("{0}")]
    Url(String),
    /// The operator does not allow it.
    #[error(
        "{host} has no address that this executor may connect to: {why} (http.allow_hosts, http.allow_networks)"
    )]
    Refused {
        /// The host.
        host: String,
        /// Each address with what it is.
        why: String,
    },
    /// The name has no address, or the name service does not answer.
    #[error("cannot resolve {host}: {why}")]
    Unresolved {
        /// The host.
        host: String,
        /// The system's reason.
        why: String,
    },
}

impl Target {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// It is no URL that this capability uses.
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let refuse = |why: &str| Err(TargetError::Url(why.to_owned()));
        if url.len() > MAX_URL_BYTES {
            return Err(TargetError::Url(format!(
                "has more than {MAX_URL_BYTES} bytes"
            )));
        }
        let uri: Uri = match url.parse() {
            Ok(uri) => uri,
            Err(fault) => return Err(TargetError::Url(format!("is not a URL: {fault}"))),
        };
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return refuse("must start with http:// or https://"),
            None => return refuse("must be a whole URL: http://host/path"),
        };
        let Some(authority) = uri.authority() else {
            return refuse("has no host");
        };
        if authority.as_str().contains('@') {
            return refuse("must not hold a user name: put credentials into a header");
        }
        let raw_host = authority.host();
        let port = match authority.as_str().get(raw_host.len()..) {
            None | Some("") => {
                if https {
                    443
                } else {
                    80
                }
            }
            Some(rest) => match rest.strip_prefix(':').map(str::parse) {
                Some(Ok(port)) => port,
                _ => return refuse("has a port that is no number up to 65535"),
            },
        };
        let unbracketed = raw_host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let host = unbracketed.unwrap_or(raw_host).to_ascii_lowercase();
        if host.is_empty() {
            return refuse("has no host");
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        Ok(Self {
            https,
            host,
            port,
            path,
        })
    }

    /// Where a redirect from here leads.
    ///
    /// # Errors
    /// It leads to no URL that this capability uses.
    pub fn join(&self, location: &str) -> Result<Self, TargetError> {
        let location = location.split('#').next().unwrap_or_default();
        let scheme = if self.https { "https" } else { "http" };
        if location.contains("://") && !location.starts_with(['/', '?', '.']) {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{scheme}://{rest}"));
        }
        let here = self.path.split('?').next().unwrap_or("/");
        let path = if location.is_empty() {
            self.path.clone()
        } else if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') {
            format!("{here}{location}")
        } else {
            let folder = here
                .rfind('/')
                .map_or("/", |end| here.get(..=end).unwrap_or("/"));
            format!("{folder}{location}")
        };
        Self::parse(&format!("{scheme}://{}{path}", self.authority()))
    }

    /// The host with the port, where it is not the usual one, as the `Host` header has it.
    pub fn authority(&self) -> String {
        let host = bracketed(&self.host);
        match (self.https, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Whether a request to `other` stays with the same server.
    pub fn same_origin(&self, other: &Self) -> bool {
        (self.https, &self.host, self.port) == (other.https, &other.host, other.port)
    }

    /// The addresses that may be connected to, and nothing else.
    ///
    /// # Errors
    /// The name does not resolve, or none of its addresses is allowed.
    pub async fn resolve(&self, rules: &HttpRules) -> Result<Vec<SocketAddr>, TargetError> {
        let found: Vec<IpAddr> = match self.host.parse() {
            Ok(address) => vec![address],
            Err(_) => {
                let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
                let found = found.map_err(|fault| TargetError::Unresolved {
                    host: self.host.clone(),
                    why: fault.to_string(),
                })?;
                found
                    .take(MAX_ADDRESSES)
                    .map(|address| address.ip())
                    .collect()
            }
        };
        self.permitted(rules, &found)
    }

    fn permitted(
        &self,
        rules: &HttpRules,
        found: &[IpAddr],
    ) -> Result<Vec<SocketAddr>, TargetError> {
        if found.is_empty() {
            return Err(TargetError::Unresolved {
                host: self.host.clone(),
                why: "it has no address".to_owned(),
            });
        }
        let host_allowed = rules.allow_hosts.iter().any(|rule| rule.matches(self));
        let mut permitted = Vec::new();
        let mut refused = Vec::new();
        for address in found {
            let listed = rules
                .allow_networks
                .iter()
                .any(|block| block.contains(*address));
            match not_public(*address) {
                Some(kind) if !host_allowed && !listed => {
                    refused.push(format!("{address} is {kind}"))
                }
                _ => permitted.push(SocketAddr::new(*address, self.port)),
            }
        }
        if permitted.is_empty() {
            return Err(TargetError::Refused {
                host: self.host.clone(),
                why: refused.join(", "),
            });
        }
        Ok(permitted)
    }
}

impl fmt::Display for Target {
    /// Without the query, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        let path = self.path.split('?').next().unwrap_or("/");
        write!(f, "{scheme}://{}{path}", self.authority())
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(hosts: &[&str], networks: &[&str]) -> HttpRules {
        HttpRules {
            allow_hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            allow_networks: networks
                .iter()
                .map(|block| block.parse().unwrap())
                .collect(),
            ..HttpRules::default()
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, https, host, port, path) in [
            ("http://example.org", false, "example.org", 80, "/"),
            (
                "https://Example.ORG/a?b=c#d",
                true,
                "example.org",
                443,
                "/a?b=c",
            ),
            ("http://[::1]:8080/x", false, "::1", 8080, "/x"),
            (
                "http://example.org:8080?q",
                false,
                "example.org",
                8080,
                "/?q",
            ),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!(
                (
                    target.https,
                    target.host.as_str(),
                    target.port,
                    target.path.as_str()
                ),
                (https, host, port, path),
                "{url}"
            );
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "",
            "/path",
            "example.org",
            "file:///etc/passwd",
            "gopher://example.org/",
            "ftp://example.org/",
            "http://",
            "http:///path",
            "http://user@example.org/",
            "http://user:secret@127.0.0.1/",
            "http://example.org:99999/",
            "http://example.org:/",
            "http://exa mple.org/",
            "http://example.org\\@127.0.0.1/",
        ] {
            assert!(
                matches!(Target::parse(url), Err(TargetError::Url(_))),
                "{url}"
            );
        }
    }

    #[test]
    fn redirects_are_joined() {
        let base = Target::parse("http://example.org:8080/a/b?c=d").unwrap();
        for (location, expected) in [
            ("https://other.org/x", "https://other.org/x"),
            ("//other.org/x", "http://other.org/x"),
            ("/x?y", "http://example.org:8080/x?y"),
            ("x", "http://example.org:8080/a/x"),
            ("?y=z", "http://example.org:8080/a/b?y=z"),
            ("/x?u=http://a/", "http://example.org:8080/x?u=http://a/"),
            ("#part", "http://example.org:8080/a/b?c=d"),
        ] {
            let joined = base.join(location).unwrap();
            assert_eq!(joined, Target::parse(expected).unwrap(), "{location}");
        }
        assert!(base.join("file:///etc/passwd").is_err());
    }

    #[tokio::test]
    async fn addresses_inside_are_refused_in_every_form() {
        for url in [
            "http://127.0.0.1/",
            "http://localhost/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://0/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[fd00:ec2::254]/",
            "http://10.0.0.1/",
        ] {
            let target = Target::parse(url).unwrap();
            let resolved = target.resolve(&HttpRules::default()).await;
            // A name service that does not know a number as a name refuses it too.
            assert!(
                matches!(
                    resolved,
                    Err(TargetError::Refused { .. } | TargetError::Unresolved { .. })
                ),
                "{url}: {resolved:?}"
            );
        }
    }

    #[test]
    fn rules_open_what_they_name_and_no_more() {
        let inside: IpAddr = "10.1.2.3".parse().unwrap();
        for (url, hosts, networks, allowed) in [
            ("http://db.internal:80/", vec!["db.internal"], vec![], true),
            (
                "http://db.internal:81/",
                vec!["db.internal:80"],
                vec![],
                false,
            ),
            ("http://x.db.internal/", vec!["*.internal"], vec![], true),
            (
                "http://internal.evil.org/",
                vec!["*.internal"],
                vec![],
                false,
            ),
            ("http://other/", vec![], vec!["10.1.0.0/16"], true),
            ("http://other/", vec![], vec!["10.2.0.0/16"], false),
        ] {
            let target = Target::parse(url).unwrap();
            let permitted = target.permitted(&rules(&hosts, &networks), &[inside]);
            assert_eq!(permitted.is_ok(), allowed, "{url} {hosts:?} {networks:?}");
        }
    }

    #[test]
    fn only_permitted_addresses_of_a_name_are_handed_on() {
        let target = Target::parse("http://both.org/").unwrap();
        let found: Vec<IpAddr> = ["10.0.0.1", "8.8.8.8"]
            .iter()
            .map(|address| address.parse().unwrap())
            .collect();
        let permitted = target.permitted(&HttpRules::default(), &found).unwrap();
        assert_eq!(permitted, ["8.8.8.8:80".parse().unwrap()]);
        assert!(target.permitted(&HttpRules::default(), &[]).is_err());
    }

    #[test]
    fn host_rules_read_as_they_are_written() {
        for text in ["a.org", "*.a.org", "a.org:80", "[::1]:80", "[::1]"] {
            let rule: HostRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        assert_eq!("::1".parse::<HostRule>().unwrap().to_string(), "[::1]");
        for bad in ["", "a:b", "a:99999", "http://a", "[::1", "[::1]x"] {
            assert!(bad.parse::<HostRule>().is_err(), "{bad}");
        }
    }
}
