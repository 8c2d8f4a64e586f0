//! Listening, serving, and an orderly end.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;

use super::connections::Connections;
use super::offer::Offer;
use crate::config::ServeConfig;
use crate::error::{Code, Error, Result};

/// How long ended requests have to tell their clients so.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Listens on `host` and `port`; port 0 takes a free one.
///
/// # Errors
/// `Io`, in one line that says what to do.
pub async fn bind(host: &str, port: u16) -> Result<TcpListener> {
    TcpListener::bind((host, port)).await.map_err(|error| {
        let attempt = format!("failed to listen on {host}:{port}");
        let told = |why: &str, hint: &str| {
            Error::new(Code::Io, format!("{attempt}: {why}")).with_hint(hint)
        };
        match error.kind() {
            ErrorKind::AddrInUse => told("the port is in use", "`--port` takes another, or 0"),
            ErrorKind::PermissionDenied => {
                told("permission denied", "`--port` takes one above 1023")
            }
            ErrorKind::AddrNotAvailable => {
                told("this machine does not have that address", "`--host` takes another")
            }
            // Name resolution fails with kinds that differ between systems.
            _ => told(&error.to_string(), "`--host` takes a local name or address"),
        }
    })
}

/// Serves until `shutdown` resolves. Then it stops accepting, lets live requests finish within the
/// configured grace, ends the rest and returns.
///
/// # Errors
/// `InvalidRequest` for a bad allow-list, and for an address beyond loopback without API keys; `Io` when
/// the listener has no address.
pub async fn serve(
    listener: TcpListener,
    offer: impl Into<Offer>,
    config: &ServeConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    super::check_exposure(listener.local_addr()?, config)?;
    let offer = offer.into();
    let models = offer.models.clone();
    let router = super::router(offer, config)?;
    let connections = Connections::new(router, models.clock().clone());
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = shutdown => {}
    }
    drop(listener);
    models.drain();
    let mut ended = pin!(connections.end());
    let patience = config.shutdown_grace.saturating_sub(LAST_WORDS);
    if timeout(patience, &mut ended).await.is_err() {
        models.stop();
        // A client that does not even read its last words is left behind.
        let _ = timeout(LAST_WORDS, &mut ended).await;
    }
    Ok(())
}
