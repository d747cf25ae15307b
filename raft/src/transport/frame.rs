//! Frames on a connection that has passed the handshake.
//!
//! ```text
//! frame = length u32 (of what follows), call number u64, payload
//! ```
//!
//! Little-endian. A request and its answer have the same call number. The payload has its own
//! checksum (the envelope of the message), so the frame has none.

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

const LENGTH_BYTES: usize = 4;
const CALL_BYTES: usize = 8;
const READ_AHEAD_BYTES: usize = 64 << 10;

/// One message with the number of its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) call: u64,
    pub(super) payload: Bytes,
}

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("frame of {bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge { bytes: usize, limit_bytes: usize },
    #[error("frame of {bytes} bytes is too short")]
    TooShort { bytes: usize },
    #[error("connection closed")]
    Closed,
    #[error("connection: {0}")]
    Io(#[from] std::io::Error),
}

/// Appends a frame to `out`. The caller has checked the size of the payload.
pub(super) fn put(out: &mut BytesMut, call: u64, payload: &[u8]) {
    out.reserve(LENGTH_BYTES + CALL_BYTES + payload.len());
    out.extend_from_slice(&((CALL_BYTES + payload.len()) as u32).to_le_bytes());
    out.extend_from_slice(&call.to_le_bytes());
    out.extend_from_slice(payload);
}

/// Reads frames; dropping [`next`](Self::next) half-way loses nothing.
pub(super) struct FrameReader<S> {
    stream: S,
    buffer: BytesMut,
    limit_bytes: usize,
}

impl<S: AsyncRead + Unpin> FrameReader<S> {
    /// `limit_bytes` is for the payload of a frame.
    pub(super) fn new(stream: S, limit_bytes: usize) -> Self {
        Self {
            stream,
            buffer: BytesMut::with_capacity(READ_AHEAD_BYTES),
            limit_bytes,
        }
    }

    /// The next whole frame.
    pub(super) async fn next(&mut self) -> Result<Frame, FrameError> {
        loop {
            if let Some(frame) = self.take_whole()? {
                return Ok(frame);
            }
            self.buffer.reserve(READ_AHEAD_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(FrameError::Closed);
            }
        }
    }

    fn take_whole(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((length, _)) = self.buffer.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > self.limit_bytes + CALL_BYTES {
            return Err(FrameError::TooLarge {
                bytes,
                limit_bytes: self.limit_bytes,
            });
        }
        if bytes < CALL_BYTES {
            return Err(FrameError::TooShort { bytes });
        }
        if self.buffer.len() < LENGTH_BYTES + bytes {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        let mut frame = self.buffer.split_to(bytes);
        let call = frame.get_u64_le();
        Ok(Some(Frame {
            call,
            payload: frame.freeze(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut out = BytesMut::new();
        put(&mut out, 1, b"first");
        put(&mut out, u64::MAX, b"");
        put(&mut out, 3, &[7; 1000]);
        let all = out.freeze();
        let (to, from) = tokio::io::duplex(7);
        tokio::spawn(async move {
            let mut to = to;
            tokio::io::AsyncWriteExt::write_all(&mut to, &all)
                .await
                .expect("sent");
        });
        let mut frames = FrameReader::new(from, 1000);
        for (call, payload) in [(1, &b"first"[..]), (u64::MAX, b""), (3, &[7; 1000])] {
            let frame = frames.next().await.expect("a frame");
            assert_eq!((frame.call, &frame.payload[..]), (call, payload));
        }
        assert!(matches!(frames.next().await, Err(FrameError::Closed)));
    }

    #[tokio::test]
    async fn an_oversize_frame_is_refused_by_its_length_alone() {
        let head = u32::MAX.to_le_bytes();
        let mut frames = FrameReader::new(&head[..], 1000);
        assert!(matches!(
            frames.next().await,
            Err(FrameError::TooLarge { .. })
        ));
        let head = 3_u32.to_le_bytes();
        let mut frames = FrameReader::new(&head[..], 1000);
        assert!(matches!(
            frames.next().await,
            Err(FrameError::TooShort { .. })
        ));
    }
}
