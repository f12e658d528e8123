//! Pass-through: what is not ours goes to containerd and back as it is.
//!
//! No message is decoded. Headers, data and trailers go on frame by frame, each when the other
//! side has room for it; a call that either side resets is reset on the other.

use hyper::{Request, Response, body::Incoming};
use tonic::body::Body;

use crate::containerd::Channel;

/// Passes one call through.
pub(crate) async fn pass(channel: &Channel, request: Request<Incoming>) -> Response<Body> {
    match channel.send(request.map(Body::new)).await {
        Ok(response) => response.map(Body::new),
        Err(status) => {
            tracing::debug!(message = status.message(), "a call cannot be passed through");
            status.into_http()
        }
    }
}
