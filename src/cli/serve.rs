//! `stocklock serve` and `stocklock lab`: one replica, from start to shutdown.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};

use super::inherit::Inherited;
use super::servers::race_settings;
use super::{Failure, migrate};
use crate::app::Replica;
use crate::config::{Auth, Config, Mode};
use crate::descriptors::allow_connections;
use crate::telemetry::{TraceSender, Traces};
use stocklock_lab::LIMITS;

/// Runs a replica until SIGTERM or SIGINT.
pub(super) async fn serve(config: &Config) -> Result<(), Failure> {
    let traces = start_telemetry(config)?;
    allow_connections(config.connections());
    let replica = Replica::build(config, Mode::Serve).map_err(Failure::Setting)?;
    traced(traces, run(config, Mode::Serve, replica)).await
}

/// Runs the laboratory until SIGTERM or SIGINT.
pub(super) async fn lab(settings: Inherited<Config>) -> Result<(), Failure> {
    let config = &settings.parsed;
    let traces = start_telemetry(config)?;
    // Also for the buyers of a race that the page starts.
    allow_connections(config.connections() + LIMITS.buyers as u64);
    let replica = Replica::build(config, Mode::Lab).map_err(Failure::Setting)?;
    let (database, services) = (&config.database, &config.services);
    let settings = race_settings(database, services, &config.limits, settings.variables);
    let replica = replica.with_races(settings);
    traced(traces, run(config, Mode::Lab, replica)).await
}

/// Starts the log, and the traces if they are configured.
fn start_telemetry(config: &Config) -> Result<Option<TraceSender>, Failure> {
    let collector = config.traces.otel_exporter_otlp_endpoint.clone();
    let started = collector.map(|collector| Traces::start(collector, &config.service.name()));
    let (traces, sender) = started.unzip();
    super::start_telemetry(&config.log, traces)?;
    Ok(sender)
}

/// Runs a replica, and then sends the rest of its traces.
async fn traced(
    traces: Option<TraceSender>,
    replica: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let ended = replica.await;
    if let Some(traces) = traces {
        traces.end().await;
    }
    ended
}

async fn run(config: &Config, mode: Mode, replica: Replica) -> Result<(), Failure> {
    migrate(&config.database).await?;
    replica.load_keys().await.map_err(Failure::Setting)?;
    let (listener, address) = listen("LISTEN", config.listen(mode))?;
    let admin = config.service.addresses.admin_listen;
    let admin = admin
        .map(|address| listen("ADMIN_LISTEN", address))
        .transpose()?;
    stop_on_signal(&replica)?;
    replica.warn_of_unsafe_settings().await;
    match mode {
        Mode::Serve if config.service.auth == Auth::None => {
            tracing::warn!("AUTH=none: everyone who can reach this service can change stock");
        }
        Mode::Serve => {}
        Mode::Lab => replica
            .seed_lab()
            .await
            .map_err(|error| Failure::Other(format!("cannot seed the lab's stock: {error}")))?,
    }
    let strategy = config.service.strategy.name();
    tracing::info!(%address, strategy, ?mode, "listening");
    if mode == Mode::Lab {
        tracing::info!(
            "open http://{address}/, or try: curl -X POST http://{address}/stock/deduct"
        );
    }
    replica.run(listener, admin.map(|(admin, _)| admin)).await;
    tracing::info!("stopped");
    Ok(())
}

/// Connections that may wait for the accept loop. The kernel drops the first packet of any other, and its
/// client asks again a second later.
const BACKLOG: u32 = 4096;

/// Listens on the address of a setting. Also returns the address with the port that was bound.
pub(super) fn listen(
    setting: &str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed =
        |error| Failure::Setting(format!("{setting}: cannot listen on {address}: {error}"));
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    let socket = socket.map_err(failed)?;
    // A restart need not wait for the connections of its predecessor.
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    let listener = socket.listen(BACKLOG).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// SIGTERM and SIGINT shut the replica down gracefully.
pub(super) fn stop_on_signal(replica: &Replica) -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::Other(error.to_string()));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let shutdown = replica.shutdown_token();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: finishing the requests in progress");
        shutdown.cancel();
    });
    Ok(())
}
