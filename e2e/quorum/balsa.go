package quorum

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/balsahq/balsa/e2e/lan"
)

// balsa is the build under test. It runs only control planes, unless Flags say more.
type balsa struct {
	c     *Cluster
	joins []bool // the server has to join; cleared by its first start
}

const balsaPort = 6443

func newBalsa(c *Cluster) *balsa {
	b := &balsa{c: c, joins: make([]bool, c.Size())}
	for i := 1; i < len(b.joins); i++ {
		b.joins[i] = true
	}
	return b
}

func (b *balsa) port() int { return balsaPort }

func (b *balsa) name(i int) string { return fmt.Sprintf("server-%d", i) }

func (b *balsa) env(i int) []string {
	m := b.c.Net.Machines[i]
	return []string{"BALSA_DATA_DIR=" + filepath.Join(m.Data(), "balsa"), "BALSA_RUN_DIR=" + filepath.Join(m.Dir, "run"), "KUBECONFIG="}
}

// run runs a balsa command on machine i.
func (b *balsa) run(ctx context.Context, i int, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	cmd := b.c.Net.Machines[i].Command(ctx, b.c.cfg.Binary, args...)
	cmd.Env = append(os.Environ(), b.env(i)...)
	return output(cmd)
}

func output(cmd *exec.Cmd) (string, error) {
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &fault, time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("balsa %s: %w: %s", strings.Join(cmd.Args[4:], " "), err, strings.TrimSpace(fault.String()))
	}
	return out.String(), nil
}

func (b *balsa) program(ctx context.Context, i int) (lan.Program, error) {
	m := b.c.Net.Machines[i]
	args := []string{"server", "--disable-agent", "--node-name=" + b.name(i), "--node-ip=" + m.Addr.String(), "--log-dir=" + filepath.Join(m.Dir, "log")}
	if b.joins[i] {
		through, token, err := b.token(ctx, i)
		if err != nil {
			return lan.Program{}, err
		}
		args = append(args, "--join="+b.c.Host(through), "--token="+token)
		b.joins[i] = false
	}
	return lan.Program{Path: b.c.cfg.Binary, Args: append(args, b.c.cfg.Flags...), Env: b.env(i)}, nil
}

// token asks the other servers, one after the other, for a token with which server i can join.
func (b *balsa) token(ctx context.Context, i int) (through int, token string, err error) {
	for j := range b.c.Size() {
		if j == i || !b.c.Running(j) {
			continue
		}
		out, fault := b.run(ctx, j, "token", "create", "--role=server")
		for _, word := range strings.Fields(out) {
			if strings.HasPrefix(word, "balsa1.") {
				return j, word, nil
			}
		}
		err = errors.Join(err, fault)
	}
	return 0, "", errors.Join(errors.New("no server gave a join token"), err)
}

// remove waits until the other servers list server i as left: its name is not free before.
func (b *balsa) remove(ctx context.Context, i, through int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var err error
	for ; ctx.Err() == nil; Pause(ctx, 200*time.Millisecond) {
		var list string
		if list, err = b.run(ctx, through, "members"); err != nil {
			continue
		}
		if state := memberState(list, b.name(i)); state == "alive" || state == "suspect" {
			err = fmt.Errorf("the other servers list %s as %s", b.name(i), state)
			continue
		}
		if _, err = b.run(ctx, through, "members", "remove", b.name(i)); err == nil {
			b.joins[i] = true
			return nil
		}
	}
	return err
}

// memberState returns a column of `balsa members`; "" if the name is not listed.
func memberState(list, name string) string {
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == name {
			return f[3]
		}
	}
	return ""
}

// credentials writes the credentials in the first server's kubeconfig to files, for programs that want files.
func (b *balsa) credentials() (Credentials, error) {
	dir := b.c.Net.Client.Dir
	out := Credentials{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "admin.pem"), Key: filepath.Join(dir, "admin.key")}
	if _, err := os.Stat(out.Key); err == nil {
		return out, nil
	}
	raw, err := os.ReadFile(filepath.Join(b.c.Net.Machines[0].Data(), "balsa", "server", "admin.kubeconfig"))
	if err != nil {
		return out, err
	}
	var kubeconfig struct {
		Clusters []struct {
			Cluster struct {
				CA string `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert string `json:"client-certificate-data"`
				Key  string `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(raw, &kubeconfig); err != nil {
		return out, err
	}
	if len(kubeconfig.Clusters) == 0 || len(kubeconfig.Users) == 0 {
		return out, errors.New("the administrator's kubeconfig is not complete yet")
	}
	for _, file := range []struct{ path, text string }{
		{out.CA, kubeconfig.Clusters[0].Cluster.CA}, {out.Cert, kubeconfig.Users[0].User.Cert}, {out.Key, kubeconfig.Users[0].User.Key},
	} {
		pem, err := base64.StdEncoding.DecodeString(file.text)
		if err != nil {
			return out, err
		}
		if err := os.WriteFile(file.path, pem, 0o600); err != nil {
			return out, err
		}
	}
	return out, nil
}
