package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// volumeWait is how long a pod waits until its claims are bound, before it is scheduled again, unless the settings say otherwise.
const volumeWait = 10 * time.Minute

// volumeBook holds the volumes that are promised to claims and not written yet, and wakes goroutines that wait for a claim. It is safe
// for concurrent use.
type volumeBook struct {
	mu       sync.Mutex
	reserved map[string]string // volume: claim "namespace/name"
	changed  chan struct{}     // closed and replaced when any claim changes; nil when no goroutine waits
}

func newVolumeBook() *volumeBook { return &volumeBook{reserved: make(map[string]string)} }

func claimKey(c *v1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }

func (b *volumeBook) owner(volume string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	claim, ok := b.reserved[volume]
	return claim, ok
}

func (b *volumeBook) reserve(plan rules.VolumePlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range plan.Static {
		b.reserved[s.Volume.Name] = claimKey(s.Claim)
	}
}

func (b *volumeBook) release(plan rules.VolumePlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range plan.Static {
		delete(b.reserved, s.Volume.Name)
	}
}

// wait returns a channel that is closed at the next change of any claim.
func (b *volumeBook) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

func (b *volumeBook) claimChanged() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// bindVolumes writes the plan and waits until every claim in it is bound.
func (s *Scheduler) bindVolumes(ctx context.Context, plan rules.VolumePlan, node string) error {
	for _, b := range plan.Static {
		if err := s.preBind(ctx, b); err != nil {
			return err
		}
	}
	for _, claim := range plan.Provision {
		if err := s.selectNode(ctx, claim, &node); err != nil {
			return err
		}
	}
	return s.awaitClaims(ctx, plan, node)
}

// preBind writes the claim into the volume; the volume controller then writes the volume into the claim.
func (s *Scheduler) preBind(ctx context.Context, b rules.StaticBinding) error {
	pv, dirty, err := volume.GetBindVolumeToClaim(b.Volume, b.Claim)
	if err != nil || !dirty {
		return err
	}
	_, err = s.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
	return err
}

// selectNode writes the node for which the provisioner makes the claim's volume; nil removes it.
func (s *Scheduler) selectNode(ctx context.Context, claim *v1.PersistentVolumeClaim, node *string) error {
	if node != nil && claim.Annotations[volume.AnnSelectedNode] == *node {
		return nil
	}
	value := "null"
	if node != nil {
		value = fmt.Sprintf("%q", *node)
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%s}}}`, claim.UID, volume.AnnSelectedNode, value)
	_, err := s.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name,
		types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (s *Scheduler) awaitClaims(ctx context.Context, plan rules.VolumePlan, node string) error {
	var claims []*v1.PersistentVolumeClaim
	for _, b := range plan.Static {
		claims = append(claims, b.Claim)
	}
	claims = append(claims, plan.Provision...)
	limit := s.cfg.Clock.NewTimer(s.cfg.Settings.VolumeWait)
	defer limit.Stop()
	chosen := false // the selected node was seen in the claims; a provisioner that removes it wants another node
	for {
		changed := s.volumes.wait()
		done, seen, err := s.claimsBound(claims, plan.Provision, node)
		if err != nil || done {
			return err
		}
		if chosen && !seen {
			return fmt.Errorf("provisioning failed on node %s", node)
		}
		chosen = chosen || seen
		select {
		case <-changed:
		case <-limit.C():
			return fmt.Errorf("timed out waiting for the condition")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// claimsBound reports whether all claims are bound, and whether node is selected in all claims to provision.
func (s *Scheduler) claimsBound(claims, provision []*v1.PersistentVolumeClaim, node string) (done, seen bool, err error) {
	done, seen = true, true
	get := func(c *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
		live, err := s.listers.Claims.PersistentVolumeClaims(c.Namespace).Get(c.Name)
		if err == nil && live.UID != c.UID {
			err = fmt.Errorf("persistentvolumeclaim %q was replaced", c.Name)
		}
		return live, err
	}
	for _, c := range claims {
		live, err := get(c)
		if err != nil {
			return false, false, err
		}
		done = done && rules.Bound(live)
	}
	for _, c := range provision {
		live, err := get(c)
		if err != nil {
			return false, false, err
		}
		seen = seen && live.Annotations[volume.AnnSelectedNode] == node
	}
	return done, seen, nil
}
