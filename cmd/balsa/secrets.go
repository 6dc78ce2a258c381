package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/control/encryption"
)

func newSecretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Encryption of objects at rest: configuration, state, re-encryption",
		Long: `A file that is the same on all servers (an EncryptionConfiguration, mode 0600) says how
objects are encrypted at rest. A new cluster makes a file that encrypts Secrets:
server/tls/encryption.yaml below the data directory. Joining servers get it, and servers
read it again when it changes. --encryption-provider-config names another file. In a
cluster that was created without encryption:

  balsa secrets config > /etc/balsa/encryption.yaml       on one server; copy it to all, start
                                                          them with --encryption-provider-config
  balsa secrets reencrypt                                 encrypts the objects of before

To change the key: on all servers, add the new key in the second place; then, on all,
make it the first; run ` + "`balsa secrets reencrypt`" + `; then remove the old key. With
--encryption-provider-config-automatic-reload servers read the changed file by
themselves; otherwise restart each. Keep an old key as long as you keep snapshots of its
time: their objects are encrypted with it. Snapshots contain the cluster's own file,
encrypted with the recovery key.`,
	}
	cmd.AddCommand(newSecretsConfigCommand(), newSecretsStatusCommand(), newSecretsReencryptCommand())
	return cmd
}

func newSecretsConfigCommand() *cobra.Command {
	resources := []string{"secrets"}
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print an encryption configuration with a new key",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key := make([]byte, 32)
			if _, err := rand.Read(key); err != nil {
				return err
			}
			_, err := cmd.OutOrStdout().Write(encryption.NewConfiguration(resources, time.Now(), key))
			return err
		},
	}
	cmd.Flags().StringSliceVar(&resources, "resources", resources, "resources to encrypt, such as secrets, widgets.example.com, or '*.*' for all")
	return cmd
}

func newSecretsStatusCommand() *cobra.Command {
	client := newAPIClient()
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show with which keys objects are stored, and which objects need re-encryption",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := connectRewriter(cmd.Context(), client)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			s, err := r.Status(ctx)
			if err != nil {
				return err
			}
			return errors.Join(printEncryption(cmd.OutOrStdout(), s), encryption.Agree(ctx, client.rest))
		},
	}
	client.bind(cmd.Flags())
	return cmd
}

func connectRewriter(ctx context.Context, client *apiClient) (*encryption.Rewriter, error) {
	if err := client.connect(ctx); err != nil {
		return nil, err
	}
	return encryption.NewRewriter(client.rest)
}

// printEncryption prints which objects are stored with which key, and what needs
// re-encryption. It returns an error when objects cannot be decrypted, or when the
// changed configuration is not in use.
func printEncryption(w io.Writer, s encryption.Status) error {
	if s.Configuration == "" {
		fmt.Fprintln(w, "The server has no encryption configuration (--encryption-provider-config): see `balsa secrets --help`.")
	} else {
		fmt.Fprintln(w, "configuration "+s.Configuration)
	}
	var errs []error
	if s.Unused != "" {
		errs = append(errs, fmt.Errorf("the changed configuration is not in use: %s", s.Unused))
	}
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "RESOURCE\tOBJECTS\tSTORED WITH\tSTATE")
	plain := 0
	for _, share := range s.Shares {
		state := "current"
		switch {
		case share.Error != "":
			state = "locked: " + share.Error
			errs = append(errs, fmt.Errorf("%s: %d objects stored with %s cannot be used", share.Resource, share.Objects, share.With))
		case share.Stale:
			state = "to be rewritten"
		case share.With.Provider == "":
			plain += share.Objects
			continue
		}
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\n", share.Resource, share.Objects, share.With, state)
	}
	fmt.Fprintf(out, "others\t%d\tno encryption\tas configured\n", plain)
	return errors.Join(append(errs, out.Flush())...)
}

func newSecretsReencryptCommand() *cobra.Command {
	client, limit := newAPIClient(), time.Hour
	cmd := &cobra.Command{
		Use:   "reencrypt [RESOURCE...]",
		Short: "Rewrite objects that are not stored with the current key",
		Long: `Rewrites every object that is not stored in the way in which it would be stored now:
unencrypted, with an older key, or encrypted although the configuration does not ask for
it any more. Other objects are not written, so the command may be interrupted and
repeated. All servers must be reachable and have the same encryption configuration.`,
		RunE: func(cmd *cobra.Command, resources []string) error {
			r, err := connectRewriter(cmd.Context(), client)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			if err := encryption.Agree(ctx, client.rest); err != nil {
				return err
			}
			return reencrypt(ctx, cmd.OutOrStdout(), r, resources)
		},
	}
	client.bind(cmd.Flags())
	cmd.Flags().DurationVar(&limit, "timeout", limit, "bound for the whole command")
	return cmd
}

// reencrypt rewrites the stale objects of the named resources, or of all resources when
// none is named.
func reencrypt(ctx context.Context, w io.Writer, r *encryption.Rewriter, resources []string) error {
	s, err := r.Status(ctx)
	if err != nil {
		return err
	}
	var stale []string
	var errs []error
	for _, share := range s.Shares {
		if len(resources) > 0 && !slices.Contains(resources, share.Resource) {
			continue
		}
		if share.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", share.Resource, share.Error))
		} else if share.Stale && !slices.Contains(stale, share.Resource) {
			stale = append(stale, share.Resource)
		}
	}
	for _, resource := range stale {
		done, err := r.Rewrite(ctx, resource)
		fmt.Fprintf(w, "%s: %d objects rewritten\n", resource, done.Done)
		errs = append(errs, err)
	}
	if len(stale) == 0 && len(errs) == 0 {
		fmt.Fprintln(w, "everything is stored with the current keys")
	}
	return errors.Join(errs...)
}

// encryptionTrouble returns what is wrong with encryption at rest, according to the
// server that restConfig names.
func encryptionTrouble(ctx context.Context, restConfig *rest.Config) error {
	r, err := encryption.NewRewriter(restConfig)
	if err != nil {
		return err
	}
	s, err := r.Status(ctx)
	if err != nil {
		return err
	}
	return printEncryption(io.Discard, s)
}
