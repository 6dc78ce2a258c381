package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/balsahq/balsa/fault"
)

const (
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
	// refreshWorkers is how many pods are brought up to date at the same time.
	refreshWorkers = 2
)

var errTearingDown = errors.New("volumes of the pod are being torn down")

type getFunc func(context.Context, objectKey) (*object, error)

// Mounts is what SetUp made, by volume name.
type Mounts map[string]Volume

// Volume is one volume of one pod, ready to be mounted into containers.
type Volume struct {
	// HostPath is the directory, file or device on this host; empty for the content of an image.
	HostPath string
	// Image is the image whose content the runtime mounts. It is the name from the pod; the caller replaces it by the
	// runtime's reference.
	Image string
	// ReadOnly says that containers get it read-only whatever their volumeMounts say.
	ReadOnly bool
	// Block says that HostPath is a block device for volumeDevices.
	Block bool
}

// Manager materialises the volumes of pods and keeps them up to date. Its methods may be called at the same time.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	objects *objects
	resize  func(device, dir string) error // resizeFS, which needs CAP_SYS_RESOURCE; replaced in tests

	subPathMu sync.Mutex        // subPath binds are made and taken away one at a time; guards the two below
	binds     map[string]uint64 // which call owns the bind on a target
	lastBind  uint64

	devices sync.Map // a mutex for each local volume that is mounted, by its path

	mu    sync.Mutex
	pods  map[types.UID]*podState
	users map[objectKey]map[types.UID]bool // which pods show an object
	queue workqueue.TypedRateLimitingInterface[types.UID]

	tokenKey      string                          // ID of the key that is to have signed tokens; empty: any
	signedBy      map[types.UID]map[string]string // by pod and token, the ID of the key that signed it
	tokensChanged chan struct{}                   // closed when one of these two changes

	persistent map[types.UID]map[string]persistent // by pod and volume, for Stats
}

// podState is what is known about the volumes of one pod. mu is held while its files change, before Manager.mu.
type podState struct {
	mu      sync.Mutex
	uid     types.UID
	pod     *v1.Pod // nil until the first SetUp
	mounts  Mounts
	tokens  map[string]*token
	again   map[string]bool // volumes that are looked at from time to time: of CSI drivers, and those that may grow
	objects []objectKey
	gone    bool // TearDown has begun; the state is not used any more
}

// New returns a Manager for cfg. It starts nothing. RootDir is made if it is missing.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cfg.RootDir, "pods"), 0o750); err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(cfg.RootDir)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, err
	}
	cfg.RootDir = root // as the kernel names it in mountinfo
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	m := &Manager{cfg: cfg, log: cfg.Logger, resize: resizeFS, pods: map[types.UID]*podState{},
		users: map[objectKey]map[types.UID]bool{}, binds: map[string]uint64{},
		signedBy: map[types.UID]map[string]string{}, tokensChanged: make(chan struct{}),
		persistent: map[types.UID]map[string]persistent{}}
	m.objects = newObjects(cfg.Client, m.log, m.objectChanged)
	return m, nil
}

func (m *Manager) podDir(uid types.UID) string {
	return filepath.Join(m.cfg.RootDir, "pods", string(uid))
}

// Run keeps ConfigMap, Secret, projected and token volumes as new as their sources until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.UID]())
	m.mu.Lock()
	m.queue = queue
	for uid := range m.pods {
		queue.Add(uid)
	}
	m.mu.Unlock()
	var wg sync.WaitGroup
	for range refreshWorkers {
		wg.Go(fault.Contained("node/volumes", func() { m.refreshLoop(ctx, queue) }))
	}
	m.objects.run(ctx)
	m.mu.Lock()
	m.queue = nil
	m.mu.Unlock()
	queue.ShutDown()
	wg.Wait()
	return nil
}

func (m *Manager) refreshLoop(ctx context.Context, queue workqueue.TypedRateLimitingInterface[types.UID]) {
	for {
		uid, quit := queue.Get()
		if quit {
			return
		}
		err := fault.Contain("node/volumes", func() error {
			fault.Point("node/volumes")
			return m.refresh(ctx, uid)
		})
		var missing missingKeyError
		switch {
		case err == nil, ctx.Err() != nil:
			queue.Forget(uid)
		case apierrors.IsNotFound(err), errors.As(err, &missing):
			queue.Forget(uid) // the watch of the object reports when that changes
			m.log.Info("an object of a pod's volumes is missing; the volumes keep their content until it is there again", "pod", uid, "err", err)
		default:
			queue.AddRateLimited(uid)
			m.log.Warn("cannot update a pod's volumes; they keep their content until the next try", "pod", uid, "err", err)
		}
		queue.Done(uid)
	}
}

// refresh brings the volumes of one pod up to date that come from the API, and those of CSI drivers that want that.
func (m *Manager) refresh(ctx context.Context, uid types.UID) error {
	m.mu.Lock()
	st := m.pods[uid]
	m.mu.Unlock()
	if st == nil {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone || st.pod == nil {
		return nil
	}
	var errs []error
	for i := range st.pod.Spec.Volumes {
		v := &st.pod.Spec.Volumes[i]
		if _, ready := st.mounts[v.Name]; !ready || !isDynamic(v) && !st.again[v.Name] {
			continue
		}
		if _, err := m.setUpVolume(ctx, st, v, m.objects.latest); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// refreshAt asks for a refresh of the pod at t.
func (m *Manager) refreshAt(uid types.UID, t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queue != nil {
		m.queue.AddAfter(uid, time.Until(t))
	}
}

// ClockSet has the tokens of all pods judged by the wall clock now: it was set.
func (m *Manager) ClockSet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queue == nil {
		return
	}
	for uid := range m.pods {
		m.queue.Add(uid)
	}
}

// objectChanged has the volumes that show the object brought up to date, and reports it to SourceFound if it exists.
func (m *Manager) objectChanged(key objectKey, exists bool) {
	m.mu.Lock()
	users := slices.Collect(maps.Keys(m.users[key]))
	if m.queue != nil {
		for _, uid := range users {
			m.queue.Add(uid)
		}
	}
	m.mu.Unlock()
	if !exists || m.cfg.SourceFound == nil {
		return
	}
	for _, uid := range users {
		m.cfg.SourceFound(uid)
	}
}

func (m *Manager) state(uid types.UID) *podState {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.pods[uid]
	if st == nil {
		st = &podState{uid: uid, mounts: Mounts{}, tokens: map[string]*token{}, again: map[string]bool{}}
		m.pods[uid] = st
	}
	return st
}

// register begins to watch what the pod's volumes show. Called with st.mu held, before the objects are read, so that
// no change is missed.
func (m *Manager) register(st *podState, pod *v1.Pod) {
	st.objects = objectsOf(pod)
	m.mu.Lock()
	for _, key := range st.objects {
		if m.users[key] == nil {
			m.users[key] = map[types.UID]bool{}
		}
		m.users[key][st.uid] = true
	}
	m.mu.Unlock()
	for _, key := range st.objects {
		m.objects.acquire(key)
	}
}

// unregister undoes register and forgets the pod. Called with st.mu held.
func (m *Manager) unregister(st *podState) {
	st.gone = true
	m.mu.Lock()
	for _, key := range st.objects {
		delete(m.users[key], st.uid)
		if len(m.users[key]) == 0 {
			delete(m.users, key)
		}
	}
	m.mu.Unlock()
	for _, key := range st.objects {
		m.objects.release(key)
	}
	st.objects = nil
}

// TearDown unmounts and removes every volume of the pod. It is idempotent, works for pods of an earlier life of the
// agent, and never touches what lies outside the pod's directory or behind a mount. The pod's directory itself goes
// when nothing else is in it.
func (m *Manager) TearDown(ctx context.Context, podUID types.UID) error {
	if podUID == "" || strings.ContainsAny(string(podUID), "/\x00") || strings.HasPrefix(string(podUID), ".") {
		return fmt.Errorf("volume: invalid pod uid %q", podUID)
	}
	st := m.state(podUID)
	st.mu.Lock()
	defer st.mu.Unlock()
	m.unregister(st)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.removeVolumes(ctx, podUID); err != nil {
		return err
	}
	m.mu.Lock()
	if m.signedBy[podUID] != nil {
		delete(m.signedBy, podUID)
		m.tellTokens()
	}
	delete(m.persistent, podUID)
	if m.pods[podUID] == st {
		delete(m.pods, podUID)
	}
	m.mu.Unlock()
	return nil
}

func (m *Manager) removeVolumes(ctx context.Context, uid types.UID) error {
	dir := m.podDir(uid)
	if err := unmountBelow(filepath.Join(dir, subPathsDir)); err != nil { // they keep volumes busy
		return err
	}
	if m.cfg.CSI != nil {
		if err := m.cfg.CSI.UnpublishPod(ctx, uid); err != nil {
			return err
		}
	}
	for _, part := range []string{subPathsDir, volumesDir} {
		path := filepath.Join(dir, part)
		if err := unmountBelow(path); err != nil {
			return err
		}
		if err := RemoveTree(path); err != nil {
			return err
		}
	}
	m.forgetBinds(dir)
	left, err := filepath.Glob(filepath.Join(dir, RemovedPrefix+"*")) // of an interrupted removal
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := RemoveTree(path); err != nil {
			return err
		}
	}
	_ = os.Remove(dir) // fails while the agent keeps something else there
	return nil
}

// CleanUpOrphans tears down the volumes of every pod found on disk for which keep is false. It is meant for the start
// of the agent, before any SetUp.
func (m *Manager) CleanUpOrphans(ctx context.Context, keep func(types.UID) bool) error {
	entries, err := os.ReadDir(filepath.Join(m.cfg.RootDir, "pods"))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		uid := types.UID(e.Name())
		if !e.IsDir() || keep(uid) {
			continue
		}
		if err := m.TearDown(ctx, uid); err != nil {
			errs = append(errs, fmt.Errorf("orphaned pod %s: %w", uid, err))
		}
	}
	return errors.Join(errs...)
}

// joinErrors joins errors on one line, as events show them; nil when there is none.
func joinErrors(errs []error) error {
	var some []error
	for _, err := range errs {
		if err != nil {
			some = append(some, err)
		}
	}
	switch len(some) {
	case 0:
		return nil
	case 1:
		return some[0]
	}
	return errorList(some)
}

// errorList is several errors in one line.
type errorList []error

func (l errorList) Error() string {
	texts := make([]string, len(l))
	for i, err := range l {
		texts[i] = err.Error()
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func (l errorList) Unwrap() []error { return l }
