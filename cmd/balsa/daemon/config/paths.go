package config

import (
	"log/slog"
	"os"
	"path/filepath"

	noderuntime "github.com/balsahq/balsa/node/runtime"
)

// Paths says where the files of this machine are.
type Paths struct {
	DataDir string // what is kept
	RunDir  string // sockets and process IDs
}

// DefaultPaths returns the directories of the environment ($BALSA_DATA_DIR, $BALSA_RUN_DIR), or the usual ones.
func DefaultPaths() Paths {
	return Paths{DataDir: fromEnv("BALSA_DATA_DIR", "/var/lib/balsa"), RunDir: fromEnv("BALSA_RUN_DIR", "/run/balsa")}
}

func fromEnv(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// ServerDir is the directory of a server's identity, keys and objects.
func (p *Paths) ServerDir() string { return filepath.Join(p.DataDir, "server") }

// LocalVolumesDir holds the volumes of the StorageClass balsa-local that are on this machine.
func (p *Paths) LocalVolumesDir() string { return filepath.Join(p.DataDir, "local-volumes") }

// AgentDir is the directory of this machine's node: its identity as an agent, containers, volumes.
func (p *Paths) AgentDir() string { return filepath.Join(p.DataDir, "agent") }

// BinDir is the directory of the programs that run once per pod.
func (p *Paths) BinDir() string { return filepath.Join(p.DataDir, "bin") }

// CNIConfDir is the directory of CNI configurations.
func (p *Paths) CNIConfDir() string { return filepath.Join(p.AgentDir(), "cni", "net.d") }

// Kubeconfig is the file with the administrator's.
func (p *Paths) Kubeconfig() string { return filepath.Join(p.ServerDir(), "admin.kubeconfig") }

// StoreDir is the directory of the Raft log and of snapshots of the state.
func (p *Paths) StoreDir() string { return filepath.Join(p.ServerDir(), "raft") }

// ClusterIDFile tells that this server has had objects: it is written when the
// store was opened for the first time, and refuses to begin anew where objects
// were.
func (p *Paths) ClusterIDFile() string { return filepath.Join(p.ServerDir(), "cluster-id") }

// LogFile is where a server that `balsa up` started writes its log.
func (p *Paths) LogFile() string { return filepath.Join(p.DataDir, "balsa.log") }

// PIDFile names the process that serves RunDir.
func (p *Paths) PIDFile() string { return filepath.Join(p.RunDir, "balsa.pid") }

// Runtime returns the bundled container runtime's settings.
func (p *Paths) Runtime() noderuntime.Config {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return noderuntime.Config{
		DataDir: p.AgentDir(), RunDir: p.RunDir, BinDir: p.BinDir(), CNIConfDir: p.CNIConfDir(),
		Program: program, Logger: slog.Default(),
	}
}
