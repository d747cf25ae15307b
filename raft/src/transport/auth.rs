//! Proof that both ends of a peer connection belong to the cluster.
//!
//! ```text
//! dialler → hello      magic, protocol, lane, from, to, 32 random bytes
//! listener → challenge 32 random bytes
//! dialler → proof      HMAC-SHA256(secret, "dialler"  ‖ everything both sides know)
//! listener → proof     HMAC-SHA256(secret, "listener" ‖ everything both sides know)
//! ```
//!
//! "Everything" is: the protocol version, the cluster id, both node ids, the lane and both random
//! values. So a proof cannot be replayed, reflected, or used against another node, lane or cluster.
//!
//! Invariants:
//! - The listener sends nothing but random bytes until the dialler has proved itself, and hangs up
//!   without a word when it has not.
//! - Proofs are compared in constant time.
//! - Messages have fixed sizes, so there is nothing to parse and nothing to allocate for a
//!   stranger; the whole handshake has a deadline, which the caller sets.
//!
//! Absent: secrecy and protection of what follows the handshake. That is TLS's part.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Lane;
use crate::types::NodeId;

/// Version of the handshake and of the frames after it.
pub const PROTOCOL_VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"TNRP";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const HELLO_BYTES: usize = 4 + 2 + 1 + 8 + 8 + NONCE_BYTES;
/// Fewest bytes of a secret.
pub const MIN_SECRET_BYTES: usize = 16;

type Nonce = [u8; NONCE_BYTES];
type Proof = [u8; PROOF_BYTES];

/// What every node of a cluster knows and nobody else.
#[derive(Clone)]
pub struct ClusterSecret(std::sync::Arc<[u8]>);

impl ClusterSecret {
    /// Takes the secret; at least [`MIN_SECRET_BYTES`] bytes, drawn at random by whoever set up
    /// the cluster.
    pub fn new(bytes: &[u8]) -> Result<Self, AuthError> {
        if bytes.len() < MIN_SECRET_BYTES {
            return Err(AuthError::WeakSecret { bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

/// Who this node is, and what it proves it with.
#[derive(Debug, Clone)]
pub struct Identity {
    /// This node.
    pub node: NodeId,
    /// The cluster it belongs to.
    pub cluster: String,
    /// The secret of that cluster.
    pub secret: ClusterSecret,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The secret is too short to be one.
    #[error("cluster secret has {bytes} bytes, needs at least {MIN_SECRET_BYTES}")]
    WeakSecret {
        /// Its length.
        bytes: usize,
    },
    /// The other side does not speak this protocol.
    #[error("not a peer of this protocol version")]
    Protocol,
    /// The other side wants another node than this one.
    #[error("dialled for node {wanted}, this is another")]
    WrongNode {
        /// The node it wants.
        wanted: NodeId,
    },
    /// The other side does not know the secret, or belongs to another cluster.
    #[error("wrong cluster secret or cluster id")]
    BadProof,
    /// The other side hung up before it said a word: it only looked whether somebody listens.
    #[error("hung up without a word")]
    SaidNothing,
    /// The connection failed on the way.
    #[error("handshake: {0}")]
    Io(#[from] std::io::Error),
}

/// A peer that has proved itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proven {
    /// The node at the other end.
    pub peer: NodeId,
    /// What the connection is for.
    pub lane: Lane,
}

struct Facts<'a> {
    cluster: &'a str,
    from: NodeId,
    to: NodeId,
    lane: Lane,
    dialler: &'a Nonce,
    listener: &'a Nonce,
}

#[derive(Clone, Copy)]
enum Side {
    Dialler,
    Listener,
}

fn mac(secret: &ClusterSecret, side: Side, facts: &Facts<'_>) -> Result<Hmac<Sha256>, AuthError> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).map_err(|_| AuthError::WeakSecret {
        bytes: secret.0.len(),
    })?;
    mac.update(match side {
        Side::Dialler => b"tenure peer dialler\0",
        Side::Listener => b"tenure peer listener",
    });
    mac.update(&PROTOCOL_VERSION.to_le_bytes());
    mac.update(&(facts.cluster.len() as u64).to_le_bytes());
    mac.update(facts.cluster.as_bytes());
    mac.update(&facts.from.to_le_bytes());
    mac.update(&facts.to.to_le_bytes());
    mac.update(&[facts.lane as u8]);
    mac.update(facts.dialler);
    mac.update(facts.listener);
    Ok(mac)
}

fn nonce() -> Result<Nonce, AuthError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(nonce)
}

fn hello(me: NodeId, to: NodeId, lane: Lane, nonce: &Nonce) -> Vec<u8> {
    let mut hello = Vec::with_capacity(HELLO_BYTES);
    hello.extend_from_slice(&MAGIC);
    hello.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    hello.push(lane as u8);
    hello.extend_from_slice(&me.to_le_bytes());
    hello.extend_from_slice(&to.to_le_bytes());
    hello.extend_from_slice(nonce);
    hello
}

/// Opens a connection as the side that dialled; afterwards the peer is who it should be.
pub async fn dial<S>(stream: &mut S, me: &Identity, to: NodeId, lane: Lane) -> Result<(), AuthError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mine = nonce()?;
    stream.write_all(&hello(me.node, to, lane, &mine)).await?;
    stream.flush().await?;
    let mut theirs: Nonce = [0; NONCE_BYTES];
    stream.read_exact(&mut theirs).await?;
    let facts = Facts {
        cluster: &me.cluster,
        from: me.node,
        to,
        lane,
        dialler: &mine,
        listener: &theirs,
    };
    let proof = mac(&me.secret, Side::Dialler, &facts)?
        .finalize()
        .into_bytes();
    stream.write_all(&proof).await?;
    stream.flush().await?;
    let mut answer: Proof = [0; PROOF_BYTES];
    // A listener that does not accept the proof hangs up without a word.
    stream
        .read_exact(&mut answer)
        .await
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                AuthError::BadProof
            }
            _ => AuthError::Io(e),
        })?;
    mac(&me.secret, Side::Listener, &facts)?
        .verify_slice(&answer)
        .map_err(|_| AuthError::BadProof)
}

/// Opens a connection as the side that listens. On an error the caller hangs up.
pub async fn accept<S>(stream: &mut S, me: &Identity) -> Result<Proven, AuthError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut magic = [0; 4];
    if stream.read(&mut magic[..1]).await? == 0 {
        return Err(AuthError::SaidNothing);
    }
    stream.read_exact(&mut magic[1..]).await?;
    let version = u16::from_le_bytes(take(stream).await?);
    let [lane] = take(stream).await?;
    let from = NodeId::from_le_bytes(take(stream).await?);
    let to = NodeId::from_le_bytes(take(stream).await?);
    let theirs: Nonce = take(stream).await?;
    let lane = Lane::from_number(lane).ok_or(AuthError::Protocol)?;
    if magic != MAGIC || version != PROTOCOL_VERSION {
        return Err(AuthError::Protocol);
    }
    let mine = nonce()?;
    stream.write_all(&mine).await?;
    stream.flush().await?;
    let facts = Facts {
        cluster: &me.cluster,
        from,
        to,
        lane,
        dialler: &theirs,
        listener: &mine,
    };
    let proof: Proof = take(stream).await?;
    mac(&me.secret, Side::Dialler, &facts)?
        .verify_slice(&proof)
        .map_err(|_| AuthError::BadProof)?;
    if to != me.node {
        return Err(AuthError::WrongNode { wanted: to });
    }
    let answer = mac(&me.secret, Side::Listener, &facts)?
        .finalize()
        .into_bytes();
    stream.write_all(&answer).await?;
    stream.flush().await?;
    Ok(Proven { peer: from, lane })
}

async fn take<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> Result<[u8; N], AuthError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn identity(node: NodeId, cluster: &str, secret: &str) -> Identity {
        Identity {
            node,
            cluster: cluster.to_owned(),
            secret: ClusterSecret::new(secret.as_bytes()).expect("long enough"),
        }
    }

    const SECRET: &str = "0123456789abcdef";

    async fn meet(
        dialler: Identity,
        listener: Identity,
        to: NodeId,
    ) -> (Result<(), AuthError>, Result<Proven, AuthError>) {
        let (mut a, mut b) = duplex(1024);
        let accepting = tokio::spawn(async move { accept(&mut b, &listener).await });
        let dialled = dial(&mut a, &dialler, to, Lane::Raft).await;
        drop(a);
        (dialled, accepting.await.expect("no panic"))
    }

    #[tokio::test]
    async fn two_members_meet() {
        let (dialled, accepted) = meet(identity(1, "c", SECRET), identity(2, "c", SECRET), 2).await;
        dialled.expect("listener proved itself");
        let proven = accepted.expect("dialler proved itself");
        assert_eq!((proven.peer, proven.lane), (1, Lane::Raft));
    }

    #[tokio::test]
    async fn a_wrong_secret_or_cluster_is_turned_away_by_both() {
        for stranger in [
            identity(1, "c", "another secret!!"),
            identity(1, "d", SECRET),
        ] {
            let (dialled, accepted) = meet(stranger, identity(2, "c", SECRET), 2).await;
            assert!(matches!(dialled, Err(AuthError::BadProof)), "{dialled:?}");
            assert!(matches!(accepted, Err(AuthError::BadProof)), "{accepted:?}");
        }
    }

    #[tokio::test]
    async fn a_call_for_another_node_is_turned_away() {
        let (dialled, accepted) = meet(identity(1, "c", SECRET), identity(2, "c", SECRET), 3).await;
        assert!(dialled.is_err());
        assert!(matches!(accepted, Err(AuthError::WrongNode { wanted: 3 })));
    }

    #[tokio::test]
    async fn a_listener_says_only_random_bytes_to_a_stranger() {
        let (mut stranger, mut b) = duplex(1024);
        let listener = identity(2, "c", SECRET);
        let accepting = tokio::spawn(async move { accept(&mut b, &listener).await.map(|_| ()) });
        let mine = [7; NONCE_BYTES];
        stranger
            .write_all(&hello(1, 2, Lane::Raft, &mine))
            .await
            .expect("sent");
        let mut challenge = [0; NONCE_BYTES];
        stranger
            .read_exact(&mut challenge)
            .await
            .expect("challenge");
        // Reflecting the challenge as the proof does not help.
        stranger.write_all(&challenge).await.expect("sent");
        let mut rest = Vec::new();
        stranger.read_to_end(&mut rest).await.expect("closed");
        assert!(rest.is_empty(), "the listener hung up without a word");
        assert!(matches!(
            accepting.await.expect("no panic"),
            Err(AuthError::BadProof)
        ));
    }

    #[tokio::test]
    async fn a_listener_without_the_secret_is_not_trusted() {
        let (mut a, mut impostor) = duplex(1024);
        let dialler = identity(1, "c", SECRET);
        let dialling = tokio::spawn(async move { dial(&mut a, &dialler, 2, Lane::Raft).await });
        let mut hello = [0; HELLO_BYTES];
        impostor.read_exact(&mut hello).await.expect("hello");
        impostor.write_all(&[9; NONCE_BYTES]).await.expect("sent");
        let mut proof = [0; PROOF_BYTES];
        impostor.read_exact(&mut proof).await.expect("proof");
        // Reflecting the dialler's own proof does not help: the two sides have different labels.
        impostor.write_all(&proof).await.expect("sent");
        assert!(matches!(
            dialling.await.expect("no panic"),
            Err(AuthError::BadProof)
        ));
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_printed() {
        assert!(ClusterSecret::new(b"short").is_err());
        let secret = ClusterSecret::new(SECRET.as_bytes()).expect("long enough");
        assert!(!format!("{secret:?}").contains(SECRET));
    }
}
