//! Requests to other members over the authenticated link between nodes.

use std::time::Duration;

use bytes::Bytes;

use super::Node;
use crate::propose::ForwardError;
use crate::transport::Lane;
use crate::types::{AsyncRuntime, Member, NodeId};
use crate::wire::{Blob, PeerRequest, PeerResponse};

impl<R: AsyncRuntime> Node<R> {
    /// Sends a request to the leader over the authenticated link between nodes.
    pub async fn forward(&self, request: Bytes, timeout: Duration) -> Result<Bytes, ForwardError> {
        let leader = self.metrics(|m| {
            let id = m.current_leader?;
            let member = m.membership_config.membership().get_node(&id)?.clone();
            Some((id, member))
        });
        let (id, member) = leader.ok_or(ForwardError::NoLeader)?;
        if id == self.shared.id {
            return Err(ForwardError::IsLeader);
        }
        self.send(id, &member, request, timeout).await
    }

    /// Sends a request to another member over the same link.
    pub async fn ask(
        &self,
        member: NodeId,
        request: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, ForwardError> {
        let found = self.metrics(|m| m.membership_config.membership().get_node(&member).cloned());
        let found = found.filter(|_| member != self.shared.id);
        let found = found.ok_or_else(|| ForwardError::Refused(format!("no peer {member}")))?;
        self.send(member, &found, request, timeout).await
    }

    async fn send(
        &self,
        id: NodeId,
        member: &Member,
        request: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, ForwardError> {
        let message = PeerRequest::Forward(Blob(request))
            .to_bytes()
            .map_err(|e| ForwardError::Refused(e.to_string()))?;
        let answer = self
            .shared
            .transport
            .call(id, &member.peer_address, Lane::Forward, message, timeout)
            .await;
        self.shared.contacts.note(id, &answer);
        let answer = answer.map_err(ForwardError::Call)?;
        match PeerResponse::from_bytes(&answer) {
            Ok(PeerResponse::Forward(Blob(answer))) => Ok(answer),
            Ok(PeerResponse::Refused(why)) => Err(ForwardError::Refused(why)),
            Ok(other) => Err(ForwardError::Refused(format!("unexpected {other:?}"))),
            Err(error) => Err(ForwardError::Refused(error.to_string())),
        }
    }
}
