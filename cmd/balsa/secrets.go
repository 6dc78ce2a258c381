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
		Short: "How objects are encrypted at rest, and writing them anew with the current key",
		Long: `Objects are encrypted at rest as a file says that all servers have (mode 0600), an
EncryptionConfiguration. A new cluster makes one that encrypts Secrets:
server/tls/encryption.yaml below the data directory, which joining servers get and
which is taken anew when it changes. --encryption-provider-config names another
instead. In a cluster that began without:

  balsa secrets config > /etc/balsa/encryption.yaml       on one server; copy it to all, start
                                                          them with --encryption-provider-config
  balsa secrets reencrypt                                 what was written before is encrypted too

To change the key: add the new one second, on all servers; then make it the
first, on all; ` + "`balsa secrets reencrypt`" + `; then remove the old one. With
--encryption-provider-config-automatic-reload servers take the changed file by
themselves, otherwise start each anew. Keep the old key as long as you keep
snapshots from its time: they hold what was stored. Snapshots carry the cluster's own
file, sealed with the recovery key.`,
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
	cmd.Flags().StringSliceVar(&resources, "resources", resources, "what is encrypted, as in secrets, widgets.example.com, '*.*' for everything")
	return cmd
}

func newSecretsStatusCommand() *cobra.Command {
	client := newAPIClient()
	cmd := &cobra.Command{
		Use:   "status",
		Short: "With which keys objects are stored, and which ones are to be written anew",
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

// printEncryption shows what is encrypted, and everything about which there is
// something to do; its error says that something is wrong.
func printEncryption(w io.Writer, s encryption.Status) error {
	if s.Configuration == "" {
		fmt.Fprintln(w, "The server has no encryption configuration (--encryption-provider-config): see `balsa secrets --help`.")
	} else {
		fmt.Fprintln(w, "configuration "+s.Configuration)
	}
	var errs []error
	if s.Unused != "" {
		errs = append(errs, fmt.Errorf("the changed configuration is not used: %s", s.Unused))
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
		Short: "Write objects anew that are not stored with the current key",
		Long: `Writes every object anew that is stored in another way than it would be now:
unencrypted, with an older key, or encrypted where it should not be any more.
Others are left alone, so the command may be interrupted and run again. All
servers must have the same encryption configuration, and answer.`,
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
	cmd.Flags().DurationVar(&limit, "timeout", limit, "how long it may take")
	return cmd
}

// reencrypt writes the stale objects of these resources anew, of all when none
// is named.
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
		fmt.Fprintf(w, "%s: %d written anew\n", resource, done.Done)
		errs = append(errs, err)
	}
	if len(stale) == 0 && len(errs) == 0 {
		fmt.Fprintln(w, "everything is stored with the current keys")
	}
	return errors.Join(errs...)
}

// encryptionTrouble is what is wrong with encryption at rest, as the server at
// hand says.
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
