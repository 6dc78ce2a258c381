package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/control/auth/rotation"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// rotationLook is the pause between two questions of `balsa certificates rotate` about
// the state of the rotation.
const rotationLook = time.Second

// rotateOptions are the flags of `balsa certificates rotate`.
type rotateOptions struct {
	ca, key, force, yes, detach bool
	grace                       time.Duration
}

func newCertificatesRotateCommand() *cobra.Command {
	c, o := newClusterClient(), rotateOptions{grace: rotation.DefaultGrace}
	cmd := &cobra.Command{
		Use:   "rotate {--ca | --service-account-key | --force}...",
		Short: "Replace the cluster CA, the key of service-account tokens, or both, without an outage",
		Long: `Replaces the cluster CA (--ca), the key that signs service-account tokens
(--service-account-key), or both, while the cluster runs. Any server may be asked. There
are three phases, each of which ends when every server and every agent on record has
confirmed it:

  1. trust    everything trusts the old keys and the new ones
  2. issue    servers, agents and pods get certificates and tokens of the new keys
  3. retire   the old keys are refused

The command shows what is waited for, and returns when all is done; the rotation goes on
without it, and when servers restart. A member that is gone for good is removed with
` + "`balsa members remove`" + `; --force alone passes over everything that is waited for at that
moment. An agent that was passed over finds back by itself when it runs again, as long as
it is on record and missed at most three rotations of the CA. A server that was passed
over has to be removed, and joins again with a token and an empty data directory.

After a rotation of the CA, kubeconfigs and client certificates that were copied or signed
before are refused, and join tokens made before its second phase do not work: make new
ones. Clients verify the servers' new certificates with the old CA too, until that
expires. After one of the key, tokens that were copied out of pods or Secrets are refused.
The front proxy's CA and the encryption of Secrets at rest are not changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return rotateCertificates(cmd.Context(), cmd.OutOrStdout(), c, o)
		},
	}
	c.bind(cmd.Flags())
	f := cmd.Flags()
	f.BoolVar(&o.ca, "ca", o.ca, "replace the cluster CA")
	f.BoolVar(&o.key, "service-account-key", o.key, "replace the key that signs service-account tokens")
	f.BoolVar(&o.force, "force", o.force, "pass over what the rotation that runs waits for now")
	f.BoolVar(&o.yes, "yes", o.yes, "old kubeconfigs, certificates or tokens may stop working")
	f.BoolVar(&o.detach, "detach", o.detach, "return when the rotation has begun")
	f.DurationVar(&o.grace, "grace", o.grace, "how long old tokens are accepted after every pod has a new one: programs read the file of their token again after a minute")
	return cmd
}

// consequences returns what stops working after the rotation, for a call without --yes.
func (o rotateOptions) consequences() string {
	var lines []string
	if o.ca {
		lines = append(lines, "Kubeconfigs that were copied from a server, and client certificates signed so far, will be refused: copy and sign new ones afterwards.",
			"Join tokens made so far will not work any more.")
	}
	if o.key {
		lines = append(lines, "Service-account tokens outside pods and Secrets will be refused: make new ones afterwards.")
	}
	return strings.Join(lines, "\n")
}

func rotateCertificates(ctx context.Context, out io.Writer, c *clusterClient, o rotateOptions) error {
	if !o.force && !o.yes && (o.ca || o.key) {
		fmt.Fprintln(out, o.consequences())
		return errors.New("nothing was changed: give --yes to start the rotation")
	}
	if o.grace < time.Millisecond {
		return fmt.Errorf("--grace %v: give 1ms or more", o.grace)
	}
	var now *clusterpb.Rotation
	err := c.call(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) (err error) {
		now, err = cc.RotateCertificates(ctx, &clusterpb.RotateCertificatesRequest{Ca: o.ca, ServiceAccountKey: o.key, GraceMs: o.grace.Milliseconds(), Force: o.force})
		return err
	})
	if err != nil {
		return err
	}
	if o.detach {
		printRotation(out, now)
		return nil
	}
	return awaitRotation(ctx, out, c, now)
}

// awaitRotation prints the progress of the rotation until it is done. Each question uses
// a new client, because the kubeconfig changes during the rotation.
func awaitRotation(ctx context.Context, out io.Writer, c *clusterClient, now *clusterpb.Rotation) error {
	number, shown := now.GetNumber(), ""
	for {
		if text := rotationText(now); text != shown {
			fmt.Fprint(out, text)
			shown = text
		}
		if now.GetNumber() != number || now.GetPhase() == string(rotation.Done) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the rotation goes on without this command: see `balsa certificates status`")
		case <-time.After(rotationLook):
		}
		next, err := getRotation(ctx, c)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(out, "cannot read the state of the rotation; trying again: %v\n", err)
			continue
		}
		if err == nil {
			now = next
		}
	}
}

func getRotation(ctx context.Context, c *clusterClient) (now *clusterpb.Rotation, err error) {
	err = c.call(ctx, func(ctx context.Context, cc clusterpb.ClusterClient) (err error) {
		now, err = cc.GetRotation(ctx, &clusterpb.GetRotationRequest{})
		return err
	})
	return now, err
}

func printRotation(w io.Writer, r *clusterpb.Rotation) { fmt.Fprint(w, rotationText(r)) }

func rotationText(r *clusterpb.Rotation) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.GetSummary())
	for _, wait := range r.GetWaits() {
		fmt.Fprintln(&b, "  waits for "+wait)
	}
	for _, name := range r.GetPassedOver() {
		fmt.Fprintln(&b, "  did not wait for "+name)
	}
	return b.String()
}

// printClusterRotation prints the state of the cluster's rotation, on a machine that has the
// administrator's kubeconfig.
func printClusterRotation(ctx context.Context, w io.Writer, c *clusterClient) {
	if _, err := os.Stat(c.paths.Kubeconfig()); c.kubeconfig == "" && errors.Is(err, fs.ErrNotExist) {
		return // an agent: it follows the servers
	}
	fmt.Fprintln(w)
	now, err := getRotation(ctx, c)
	if err != nil {
		fmt.Fprintf(w, "cannot read whether a rotation is under way: %v\n", err)
		return
	}
	printRotation(w, now)
}
