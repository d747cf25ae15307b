//! The folder of a development cluster: made once, then read again.

use std::fs::{self, File, TryLockError};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_api::cluster::Role;
use tenure_sdk::Client;

use super::examples::Examples;
use super::{DevError, DevOptions};
use crate::config::{HttpSettings, Listen, LogSettings, MemberConfig, NodeConfig, RaftSettings};
use crate::leader::LeaderConfig;
use crate::security::{
    Entropy, OsEntropy, Principal, generate_cluster_secret, issue_token, read_secret_file,
    write_secret_file,
};

/// The ports are counted from here, unless it is said otherwise.
const DEFAULT_BASE_PORT: u16 = 7400;

/// One of the three nodes.
#[derive(Clone, Debug)]
pub(super) struct DevNode {
    pub(super) id: u64,
    pub(super) http_port: u16,
    pub(super) peer_port: u16,
    pub(super) config: PathBuf,
    pub(super) log: PathBuf,
}

impl DevNode {
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http_port)
    }

    pub(super) fn peer_address(&self) -> String {
        format!("127.0.0.1:{}", self.peer_port)
    }
}

/// What is where.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    pub(super) nodes: Vec<DevNode>,
    pub(super) examples_dir: PathBuf,
    pub(super) admin_token_file: PathBuf,
    pub(super) executor_token_file: PathBuf,
    /// For people: what a shell reads to talk to this cluster.
    pub(super) shell_file: PathBuf,
    /// The jobs of the examples, and the record of which were applied.
    pub(super) examples: Examples,
    pub(super) examples_record: PathBuf,
    admin_token: String,
    /// Nobody else writes to the folder as long as this is open.
    _lock: Arc<File>,
}

impl Layout {
    /// Makes what is missing; leaves alone what is there.
    pub(super) async fn prepare(options: &DevOptions) -> Result<Self, DevError> {
        // What only reads comes first: a wrong folder leaves nothing behind.
        let of_folder = options
            .examples
            .as_deref()
            .map(Examples::of_folder)
            .transpose()?;
        let dir = std::path::absolute(&options.dir)
            .map_err(|error| DevError::new(&options.dir.display().to_string(), error))?;
        make_folder(&dir)?;
        // Before anything is written: another one may run here, with other ports.
        let lock = Arc::new(lock(&dir)?);
        let base_port = base_port(&dir, options.base_port)?;
        let examples = match of_folder {
            Some(examples) => examples,
            None => Examples::embedded(base_port + 1)?,
        };
        let secret = dir.join("cluster.secret");
        if !secret.exists() {
            let fresh = generate_cluster_secret(&OsEntropy)
                .map_err(|error| DevError::new("random bytes", error))?;
            write(&secret, fresh.expose())?;
        }
        let tokens = dir.join("tokens");
        let admin_token_file = dir.join("admin.token");
        let executor_token_file = dir.join("executor.token");
        if !tokens.exists() {
            make_tokens(&tokens, &admin_token_file, &executor_token_file)?;
        }
        let cluster_id = cluster_id(&dir.join("cluster.id"))?;
        let nodes: Vec<DevNode> = (1..=3u16)
            .map(|number| DevNode {
                id: u64::from(number),
                http_port: base_port + number,
                peer_port: base_port + 10 + number,
                config: dir.join(format!("node{number}.toml")),
                log: dir.join(format!("node{number}.log")),
            })
            .collect();
        for node in &nodes {
            check_port(node.http_port)?;
            check_port(node.peer_port)?;
        }
        for node in &nodes {
            let config = node_config(&dir, &nodes, node, &cluster_id, &tokens, &secret);
            let first = !node.config.exists();
            if first
                && crate::node::folder_is_fresh(&config)
                    .await
                    .map_err(reason)?
            {
                crate::node::initialize_folder(&config)
                    .await
                    .map_err(reason)?;
            }
            let text = toml::to_string(&config).map_err(reason)?;
            fs::write(&node.config, text)
                .map_err(|error| DevError::new(&node.config.display().to_string(), error))?;
        }
        let examples_dir = examples.unpack(&dir)?;
        let token = read_secret_file(&admin_token_file, 1024).map_err(reason)?;
        let admin_token = String::from_utf8_lossy(&token).trim().to_owned();
        let layout = Self {
            shell_file: dir.join("env"),
            examples_record: dir.join("examples.applied"),
            dir,
            nodes,
            examples_dir,
            examples,
            admin_token_file,
            executor_token_file,
            admin_token,
            _lock: lock,
        };
        fs::write(&layout.shell_file, layout.shell_text())
            .map_err(|error| DevError::new(&layout.shell_file.display().to_string(), error))?;
        Ok(layout)
    }

    /// A client with the administrator's token.
    pub(super) fn client(&self) -> Result<Client, DevError> {
        Client::builder()
            .nodes(self.nodes.iter().map(DevNode::url))
            .token(self.admin_token.clone())
            .build()
            .map_err(reason)
    }

    /// The URLs of all nodes, for people and flags.
    pub(super) fn urls(&self) -> String {
        self.nodes
            .iter()
            .map(DevNode::url)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Where the logs are, for people.
    pub(super) fn logs(&self) -> String {
        format!("{}/node*.log", self.dir.display())
    }

    /// Variables and the program, in the language of `sh`.
    fn shell_text(&self) -> String {
        let program =
            std::env::current_exe().map_or("tenure".into(), |path| path.display().to_string());
        format!(
            "# Made by `tenure dev`. Read it with: . {}\nexport TENURE_NODES={}\nexport TENURE_TOKEN_FILE={}\ntenure() {{ {} \"$@\"; }}\n",
            quoted(&self.shell_file.display().to_string()),
            quoted(&self.urls()),
            quoted(&self.admin_token_file.display().to_string()),
            quoted(&program),
        )
    }
}

/// One word of a shell, whatever is in it.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The lock of the folder. It ends with the process, however that ends.
fn lock(dir: &Path) -> Result<File, DevError> {
    let path = dir.join("lock");
    let fail = |error| DevError::new(&path.display().to_string(), error);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DevError(format!(
            "another `tenure dev` runs in {}. Stop that one, or give --dir and --base-port",
            dir.display()
        ))),
        Err(TryLockError::Error(error)) => Err(fail(error)),
    }
}

/// The ports are part of the cluster: its nodes know each other by them. So they are chosen at the first start.
fn base_port(dir: &Path, wanted: Option<u16>) -> Result<u16, DevError> {
    let first = dir.join("node1.toml");
    if !first.exists() {
        return Ok(wanted.unwrap_or(DEFAULT_BASE_PORT));
    }
    let config = NodeConfig::load(&first, false)
        .map_err(|error| DevError::new(&first.display().to_string(), error))?;
    let present = config.listen.http.port().saturating_sub(1);
    match wanted {
        Some(wanted) if wanted != present => Err(DevError(format!(
            "--base-port {wanted}: the cluster in {} was made with {present}, and its nodes know each other by \
             these ports. Leave out --base-port, or give another --dir for another cluster",
            dir.display()
        ))),
        _ => Ok(present),
    }
}

/// Says early what a node would say late.
fn check_port(port: u16) -> Result<(), DevError> {
    TcpListener::bind(("127.0.0.1", port)).map_or_else(
        |error| {
            Err(DevError(format!(
                "port {port}: {error}. Stop what uses it, or give another --base-port and --dir"
            )))
        },
        |_free| Ok(()),
    )
}

fn reason(error: impl std::fmt::Display) -> DevError {
    DevError(error.to_string())
}

fn make_folder(dir: &Path) -> Result<(), DevError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| DevError::new(&dir.display().to_string(), error))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), DevError> {
    write_secret_file(path, bytes).map_err(reason)
}

/// The file of hashes comes last: as long as it is missing, the tokens are drawn anew.
fn make_tokens(tokens: &Path, admin: &Path, executor: &Path) -> Result<(), DevError> {
    let mut lines = String::new();
    for (name, role, path) in [
        ("admin", Role::Admin, admin),
        ("executor", Role::Executor, executor),
    ] {
        let name = name.parse().map_err(reason)?;
        let (text, entry) = issue_token(&OsEntropy, Principal { name, role }).map_err(reason)?;
        let _ = fs::remove_file(path);
        write(path, format!("{}\n", text.expose()).as_bytes())?;
        lines.push_str(&entry.line());
        lines.push('\n');
    }
    write(tokens, lines.as_bytes())
}

fn cluster_id(path: &Path) -> Result<String, DevError> {
    // An empty file is what a crash in the middle of the first start leaves.
    if let Ok(text) = fs::read_to_string(path)
        && !text.trim().is_empty()
    {
        return Ok(text.trim().to_owned());
    }
    let mut bytes = [0; 6];
    OsEntropy.fill(&mut bytes).map_err(reason)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let id = format!("dev-{hex}");
    fs::write(path, format!("{id}\n"))
        .map_err(|error| DevError::new(&path.display().to_string(), error))?;
    Ok(id)
}

fn node_config(
    dir: &Path,
    nodes: &[DevNode],
    node: &DevNode,
    cluster_id: &str,
    tokens: &Path,
    secret: &Path,
) -> NodeConfig {
    let loopback = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    NodeConfig {
        cluster_id: cluster_id.to_owned(),
        node_id: node.id,
        data_dir: dir.join(format!("node{}", node.id)),
        tokens_file: tokens.to_owned(),
        cluster_secret_file: secret.to_owned(),
        listen: Listen {
            http: loopback(node.http_port),
            peer: loopback(node.peer_port),
        },
        members: nodes
            .iter()
            .map(|node| MemberConfig {
                id: node.id,
                http: node.url(),
                peer: node.peer_address(),
            })
            .collect(),
        raft: RaftSettings::default(),
        leader: LeaderConfig::default(),
        log: LogSettings::default(),
        http: HttpSettings::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: PathBuf, base_port: u16) -> DevOptions {
        DevOptions {
            dir,
            base_port: Some(base_port),
            examples: None,
            plain: true,
        }
    }

    #[tokio::test]
    async fn a_second_one_in_the_folder_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("dev");
        let first = Layout::prepare(&options(dir.clone(), 23_400))
            .await
            .unwrap();
        let before = fs::read(&first.nodes[0].config).unwrap();

        let refused = Layout::prepare(&options(dir.clone(), 23_500)).await;

        let said = refused.unwrap_err().to_string();
        assert!(said.contains("another `tenure dev` runs in"), "{said}");
        assert_eq!(fs::read(&first.nodes[0].config).unwrap(), before);
        drop(first);
        Layout::prepare(&options(dir, 23_400)).await.unwrap();
    }

    #[tokio::test]
    async fn wrong_examples_leave_no_folder_behind() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("dev");
        let mut wrong = options(dir.clone(), 23_600);
        wrong.examples = Some(folder.path().join("nowhere"));
        assert!(Layout::prepare(&wrong).await.is_err());
        assert!(!dir.exists());
    }

    #[tokio::test]
    async fn a_folder_keeps_the_ports_of_its_first_start() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("dev");
        let mut chosen = options(dir, 23_700);
        drop(Layout::prepare(&chosen).await.unwrap());

        chosen.base_port = Some(23_800);
        let said = Layout::prepare(&chosen).await.unwrap_err().to_string();
        assert!(said.contains("was made with 23700"), "{said}");
        chosen.base_port = None;
        let again = Layout::prepare(&chosen).await.unwrap();
        assert_eq!(again.nodes[0].http_port, 23_701);
    }

    #[test]
    fn a_word_of_the_shell_stays_one() {
        assert_eq!(quoted("/a/b-1.c"), "/a/b-1.c");
        assert_eq!(quoted("/it's here"), r"'/it'\''s here'");
    }
}
