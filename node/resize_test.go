package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/nodetest"
)

// cpuPod returns a pod of one container that asks for this many thousandths of a CPU.
func cpuPod(name string, milli int64, policies ...v1.ContainerResizePolicy) *v1.Pod {
	p := nodetest.Pod(v1.RestartPolicyAlways, 0, 1)
	p.Name, p.UID, p.Generation = name, types.UID(name), 1
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
	p.Spec.Containers[0].ResizePolicy = policies
	return p
}

func (b *bench) resize(name string, milli int64) {
	b.t.Helper()
	p := b.get(name)
	p.Generation++
	p.Spec.Containers[0].Resources.Requests = cpuPod(name, milli).Spec.Containers[0].Resources.Requests
	if _, err := b.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.wait(time.Second)
}

// resized returns the thousandths of a CPU that are allocated and in force, and the reasons of the conditions of resizes.
func (b *bench) resized(name string) (allocated, actual int64, conditions string) {
	b.t.Helper()
	p := b.get(name)
	st := p.Status.ContainerStatuses[0]
	var cs []string
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			cs = append(cs, strings.TrimSuffix(string(c.Type)+" "+c.Reason, " "))
		}
	}
	return st.AllocatedResources.Cpu().MilliValue(), st.Resources.Requests.Cpu().MilliValue(), strings.Join(cs, ", ")
}

func (b *bench) expectResized(name string, allocated, actual int64, conditions string) {
	b.t.Helper()
	if a, is, c := b.resized(name); a != allocated || is != actual || c != conditions {
		b.t.Errorf("%s: allocated %d, in force %d, conditions %q; want %d, %d, %q", name, a, is, c, allocated, actual, conditions)
	}
}

func TestAResizeIsCarriedOutInPlace(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(cpuPod("p", 100))
		b.wait(time.Second)
		b.resize("p", 200)
		b.expectResized("p", 200, 200, "")
		if b.count("update c0") != 1 || b.count("start c0") != 1 {
			t.Error(b.rt.Log())
		}
		p := b.get("p")
		if p.Status.ObservedGeneration != 2 || p.Status.AllocatedResources.Cpu().MilliValue() != 200 || p.Status.Resources.Requests.Cpu().MilliValue() != 200 {
			t.Errorf("%+v", p.Status)
		}
	})
}

func TestAResizeThatNeedsARestart(t *testing.T) {
	onBench(t, func(b *bench) {
		b.run(cpuPod("p", 100, v1.ContainerResizePolicy{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer}))
		b.wait(time.Second)
		for i := range int64(3) { // a restart for a resize has no crash back-off, not even the third
			b.resize("p", 200+i)
			b.expectResized("p", 200+i, 200+i, "")
			if n := b.get("p").Status.ContainerStatuses[0].RestartCount; int64(n) != i+1 || b.count("update c0") != 0 {
				t.Errorf("%d restarts, %v", n, b.rt.Log())
			}
		}
	})
}

func TestAResizeWaitsForRoomAndForAnAgentThatStartsAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		all := b.agent.Node().Status.Allocatable.Cpu().MilliValue()
		b.run(cpuPod("p", all/2))
		b.run(cpuPod("q", all/4))
		b.run(cpuPod("r", all/4))
		b.wait(time.Second)
		b.resize("q", all/2)
		b.expectResized("q", all/4, all/4, "PodResizePending Deferred")
		b.stop()
		b.start()
		b.wait(time.Second)
		b.expectResized("q", all/4, all/4, "PodResizePending Deferred")
		b.resize("p", all/4)
		b.expectResized("p", all/4, all/4, "")
		b.expectResized("q", all/2, all/2, "")

		b.resize("r", all/2)
		b.expectResized("r", all/4, all/4, "PodResizePending Deferred")
		b.resize("r", all/4) // taken back
		b.expectResized("r", all/4, all/4, "")
		b.resize("r", all/2)
		b.delete("p", 1)
		b.wait(5 * time.Second)
		b.expectResized("r", all/2, all/2, "")
		b.resize("r", 2*all)
		b.expectResized("r", all/2, all/2, "PodResizePending Infeasible")
	})
}

func TestAResizeThatFailsIsTriedAgain(t *testing.T) {
	onBench(t, func(b *bench) {
		fails := true
		b.rt.Fail("UpdateContainerResources", func() error {
			if fails {
				return errors.New("no")
			}
			return nil
		})
		b.run(cpuPod("p", 100))
		b.wait(time.Second)
		b.resize("p", 200)
		b.expectResized("p", 200, 100, "PodResizeInProgress Error")
		b.stop()
		b.start() // which knows that it is not carried out
		b.wait(time.Second)
		b.expectResized("p", 200, 100, "PodResizeInProgress Error")
		fails = false
		b.wait(time.Minute)
		b.expectResized("p", 200, 200, "")
		if b.count("start c0") != 1 {
			t.Error(b.rt.Log())
		}
	})
}
