package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// TestObjectsOfAnotherClusterAreRefused: a server does not serve a store that does not belong to the certificates
// beside it, and does not replace a missing store by an empty one.
func TestObjectsOfAnotherClusterAreRefused(t *testing.T) {
	stranger := start(t)
	if err := stranger.Kill9(); err != nil {
		t.Fatal(err)
	}
	c := start(t)
	c.kubectl("create", "configmap", "precious", "--from-literal=a=b")
	if err := c.Kill9(); err != nil {
		t.Fatal(err)
	}
	raft := filepath.Join(c.DataDir, "server", "raft")
	if err := os.Rename(raft, raft+".kept"); err != nil {
		t.Fatal(err)
	}
	c.mustSay(refusedStart(c), "missing", raft)
	if err := os.CopyFS(raft, os.DirFS(filepath.Join(stranger.DataDir, "server", "raft"))); err != nil {
		t.Fatal(err)
	}
	c.mustSay(refusedStart(c), "another cluster")
	if err := os.RemoveAll(raft); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(raft+".kept", raft); err != nil {
		t.Fatal(err)
	}
	c.up()
	c.kubectl("get", "configmap", "precious")
}

// TestTheKindOfRaftLogIsKept: a server begins with a bbolt file as Raft's log, refuses to start with the other kind, and goes on
// with its objects.
func TestTheKindOfRaftLogIsKept(t *testing.T) {
	c := start(t, "--raft-log=boltdb")
	c.kubectl("create", "configmap", "precious", "--from-literal=a=b")
	raft := filepath.Join(c.DataDir, "server", "raft")
	if _, err := os.Stat(filepath.Join(raft, "raft.db")); err != nil {
		t.Fatal("--raft-log=boltdb made no bbolt file:", err)
	}
	if err := c.Kill9(); err != nil {
		t.Fatal(err)
	}
	c.mustSay(refusedStart(c, "--raft-log=wal"), "--raft-log=wal", "began with boltdb")
	c.up()
	c.kubectl("get", "configmap", "precious")
}
