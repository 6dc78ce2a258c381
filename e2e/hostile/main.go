package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// attack is an action that the agent must not be able to do. try returns nil if it succeeded; control returns nil if
// the same action works for a client that has the right.
type attack struct {
	name         string
	try, control func(context.Context) error
}

// errRefused is the refusal of attacks that do not go through the API or gRPC.
var errRefused = errors.New("refused")

// denied reports whether err is a refusal. Any other failure would prove nothing.
func denied(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.AlreadyExists:
		return true
	}
	return errors.Is(err, errRefused) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err)
}

// each bounds the time of one attack or control.
const each = time.Minute

// judge runs an attack and its control; fault is "" if the attack was refused and its control works.
func judge(ctx context.Context, a attack) (outcome, fault string) {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	err := a.try(ctx)
	switch {
	case err == nil:
		return "", "SUCCEEDED"
	case !denied(err):
		return "", "fails, but not with a refusal: " + err.Error()
	}
	if bad := a.control(ctx); bad != nil {
		return "", "proves nothing, its control fails: " + bad.Error()
	}
	return err.Error(), ""
}

func main() {
	var o options
	flag.StringVar(&o.agentDir, "agent-dir", "", "directory of the agent's keys")
	flag.StringVar(&o.serverDir, "server-dir", "", "directory of another server than -server, for controls alone")
	flag.StringVar(&o.server, "server", "", "host:port of a server")
	flag.StringVar(&o.address, "address", "", "this node's address")
	flag.StringVar(&o.victim, "victim", "", "name of another agent's node")
	flag.StringVar(&o.victimAddress, "victim-address", "", "its address")
	flag.StringVar(&o.san, "san", "", "a name of the API by --tls-san")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	w, err := newWorld(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	faults := 0
	all := w.attacks()
	for _, a := range all {
		outcome, fault := judge(ctx, a)
		if fault != "" {
			faults++
			fmt.Printf("FAULT %s: %s\n", a.name, fault)
			continue
		}
		fmt.Printf("refused %s: %.120s\n", a.name, outcome)
	}
	fmt.Printf("%d attacks, %d faults\n", len(all), faults)
	if faults > 0 {
		os.Exit(1)
	}
}
