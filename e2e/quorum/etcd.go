package quorum

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/balsahq/balsa/e2e/lan"
)

// etcd is upstream's server with its default timers, one member on each machine, TLS on both of its ports and every
// write synced.
type etcd struct {
	c     *Cluster
	files Credentials
	cert  Credentials // of the members
	// joins: a member that was removed starts again as one that joins.
	joins []bool
}

const (
	etcdClientPort = 2379
	etcdPeerPort   = 2380
)

func newEtcd(c *Cluster) (*etcd, error) {
	e := &etcd{c: c, joins: make([]bool, c.Size())}
	var err error
	e.files, e.cert, err = makeCertificates(c.Net)
	return e, err
}

func (e *etcd) port() int                         { return etcdClientPort }
func (e *etcd) credentials() (Credentials, error) { return e.files, nil }
func (e *etcd) name(i int) string                 { return fmt.Sprintf("m%d", i) }
func (e *etcd) peerURL(i int) string {
	return fmt.Sprintf("https://%s:%d", e.c.Net.Machines[i].Addr, etcdPeerPort)
}

func (e *etcd) program(ctx context.Context, i int) (lan.Program, error) {
	state := "new"
	if e.joins[i] {
		state = "existing"
		if err := e.admit(ctx, i); err != nil {
			return lan.Program{}, err
		}
	}
	peers := make([]string, e.c.Size())
	for j := range peers {
		peers[j] = e.name(j) + "=" + e.peerURL(j)
	}
	client := e.c.Endpoint(i)
	return lan.Program{Path: e.c.cfg.Binary, Args: append([]string{
		"--name", e.name(i), "--data-dir", filepath.Join(e.c.Net.Machines[i].Data(), "etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", e.peerURL(i), "--initial-advertise-peer-urls", e.peerURL(i),
		"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-state", state,
		"--cert-file", e.cert.Cert, "--key-file", e.cert.Key, "--trusted-ca-file", e.cert.CA, "--client-cert-auth",
		"--peer-cert-file", e.cert.Cert, "--peer-key-file", e.cert.Key, "--peer-trusted-ca-file", e.cert.CA, "--peer-client-cert-auth",
		"--log-level", "warn",
	}, e.c.cfg.Flags...)}, nil
}

// through calls do with a client of another member.
func (e *etcd) through(ctx context.Context, i int, do func(context.Context, *clientv3.Client) error) error {
	client, err := e.c.Client(e.c.Endpoint(i))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return do(ctx, client)
}

func (e *etcd) remove(ctx context.Context, i, through int) error {
	err := e.through(ctx, through, func(ctx context.Context, client *clientv3.Client) error {
		list, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if m.PeerURLs[0] == e.peerURL(i) {
				_, err := client.MemberRemove(ctx, m.ID)
				return err
			}
		}
		return nil
	})
	e.joins[i] = err == nil
	return err
}

// admit adds member i to the membership before it starts. A cluster with a member that is new refuses this for five
// seconds.
func (e *etcd) admit(ctx context.Context, i int) error {
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); Pause(ctx, 200*time.Millisecond) {
		err = e.through(ctx, (i+1)%e.c.Size(), func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MemberAdd(ctx, []string{e.peerURL(i)})
			return err
		})
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	e.joins[i] = err != nil
	return err
}
