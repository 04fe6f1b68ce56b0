{{/*
What pods do while recovery.name is set: docs/guides/disaster-recovery.md. Each has its volumes, settings and
certificates as ever, so that the commands of the guide find them where the services do.
*/}}

{{/* A broker or coordinator that does nothing but wait for commands. */}}
{{- define "headrace.idle" -}}
command: [/bin/sh, -c]
args: ["trap exit TERM; sleep infinity & wait"]
{{- end -}}

{{/*
A member of etcd waits for a snapshot on its volume, and restores it before it starts. Files bear the recovery's name: a
pod that is restarted meanwhile restores nothing twice, and what a former recovery left is cleared away.
*/}}
{{- define "headrace.etcdRestore" -}}
{{- $name := .Values.recovery.name -}}
{{- $etcd := .Values.etcd.bundled -}}
{{- $domain := include "headrace.podDomain" (dict "root" . "component" "etcd") -}}
{{- $image := include "headrace.image" (dict "image" .Values.image "tag" .Chart.AppVersion) -}}
- name: snapshot
  image: {{ $image }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -ceu]
  args:
    - |
      trap exit TERM
      cd /var/lib/etcd
      rm -rf restoring
      for each in before-* snapshot-* restored-*; do
        case $each in
          before-{{ $name }} | snapshot-{{ $name }}.db | restored-{{ $name }}) ;;
          *) rm -rf "$each" ;;
        esac
      done
      until test -e snapshot-{{ $name }}.db; do sleep 1; done
  {{- include "headrace.restoreStep" . | nindent 2 }}
- name: restore
  image: {{ include "headrace.image" (dict "image" $etcd.image "tag" "") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [etcdutl, snapshot, restore, /var/lib/etcd/snapshot-{{ $name }}.db]
  args:
    - --data-dir=/var/lib/etcd/restoring
    - --name=$(ETCD_NAME)
    - --initial-cluster={{ include "headrace.etcdInitialCluster" . }}
    - --initial-cluster-token={{ include "headrace.etcdToken" . }}
    - --initial-advertise-peer-urls={{ include "headrace.etcdScheme" . }}://$(ETCD_NAME).{{ $domain }}:2380
    {{- if not (regexMatch "^v?3\\.5\\." $etcd.image.tag) }}
    # So that no watch takes a revision from before for a new one. etcd 3.5 has no such option.
    - --bump-revision=1000000000
    - --mark-compacted
    {{- end }}
  env:
    - name: ETCD_NAME
      valueFrom:
        fieldRef: {fieldPath: metadata.name}
  {{- include "headrace.restoreStep" . | nindent 2 }}
- name: take-over
  image: {{ $image }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/bin/sh, -ceu]
  args:
    - |
      cd /var/lib/etcd
      if test -e restored-{{ $name }}; then rm -rf restoring; exit 0; fi
      if test -e data; then mv data before-{{ $name }}; fi
      mv restoring data
      touch restored-{{ $name }}
  {{- include "headrace.restoreStep" . | nindent 2 }}
{{- end -}}

{{- define "headrace.restoreStep" -}}
resources:
  {{- toYaml .Values.etcd.bundled.resources | nindent 2 }}
securityContext:
  {{- include "headrace.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: data, mountPath: /var/lib/etcd}
{{- end -}}
