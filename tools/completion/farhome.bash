# Completion of farhome's commands for bash: source this file, or copy it to /usr/share/bash-completion/completions/.

_farhome_nodes() { mosctl nodes 2>/dev/null | awk 'NR > 1 { sub(/\*$/, "", $1); print $1 }'; }
_farhome_pids() { mosps 2>/dev/null | awk 'NR > 1 { print $1 }'; }
_farhome_jobs() { mosps --json 2>/dev/null | sed -n 's/^ *"job": "\(..*\)",$/\1/p' | sort -u; }
_farhome_guests() { mosps --guests 2>/dev/null | awk 'NR > 1 { print $1 }'; }
_farhome_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}"); }
# The last of words with commas between them.
_farhome_list() {
    local word=${COMP_WORDS[COMP_CWORD]} before=
    case $word in *,*) before=${word%,*}, ;; esac
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$1" -- "${word##*,}")
}

# Where among the words the program of mosrun begins; nothing if it has not begun.
_farhome_program_at() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            --) echo $((i + 1)); return ;;
            -[rmJACRXT] | --node | --memory | --job | --every | --checkpoint | --restart | --private | --trust) ((i++)) ;;
            -*) ;;
            *) echo "$i"; return ;;
        esac
    done
}

_farhome_mosrun() {
    local at
    at=$(_farhome_program_at)
    if [ -n "$at" ]; then
        declare -F _command_offset >/dev/null && _command_offset "$at" || mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        return
    fi
    case ${COMP_WORDS[COMP_CWORD - 1]} in
        -r | --node) _farhome_words "$(_farhome_nodes)" ;;
        -T | --trust) _farhome_list "$(_farhome_nodes)" ;;
        -J | --job) _farhome_words "$(_farhome_jobs)" ;;
        -m | --memory | -A | --every) ;;
        -C | --checkpoint | -R | --restart | -X | --private) mapfile -t COMPREPLY < <(compgen -d -- "${COMP_WORDS[COMP_CWORD]}") ;;
        *) case ${COMP_WORDS[COMP_CWORD]} in
            -*) _farhome_words "-h --home -b --best -r --node -L --locked -T --trust -m --memory -J --job -A --every -C --checkpoint -R --restart -X --private --trace --help" ;;
            *) mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}") ;;
        esac ;;
    esac
}

_farhome_migrate() {
    case ${COMP_WORDS[COMP_CWORD]} in -*) _farhome_words "--engine --memory --async --verbose -v --json --help"; return ;; esac
    case ${COMP_WORDS[COMP_CWORD - 1]} in --engine) _farhome_words "auto pour criu"; return ;; --memory) _farhome_words "auto precopy postcopy"; return ;; esac
    if [ "$COMP_CWORD" = 1 ]; then
        _farhome_words "$(_farhome_pids)"
    elif [ "${COMP_WORDS[COMP_CWORD - 1]}" = checkpoint ]; then
        mapfile -t COMPREPLY < <(compgen -d -- "${COMP_WORDS[COMP_CWORD]}")
    else
        _farhome_words "home out balance checkpoint $(_farhome_nodes)"
    fi
}

_farhome_mosps() {
    case ${COMP_WORDS[COMP_CWORD - 1]} in
        -J | --job) _farhome_words "$(_farhome_jobs)" ;;
        --why) _farhome_words "$(_farhome_pids)" ;;
        *) _farhome_words "-a --all -J --job -v --verbose --why --guests --json --help" ;;
    esac
}

_farhome_moscheck() {
    case ${COMP_WORDS[COMP_CWORD]} in
        -*) _farhome_words "--json --help" ;;
        [0-9]*) _farhome_words "$(_farhome_pids)" ;;
        *) mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}") ;;
    esac
}

_farhome_mosctl() {
    if [ "$COMP_CWORD" = 1 ]; then
        _farhome_words "status cluster nodes reload block unblock expel bring why policy owner ledger mfs --help"
        return
    fi
    case ${COMP_WORDS[1]} in
        cluster) if [ "$COMP_CWORD" = 2 ]; then _farhome_words "init token join remove add-authority resign"; else _farhome_words "--name --days --minutes --json --help"; fi ;;
        expel) _farhome_words "$(_farhome_guests) --within --json" ;;
        why) _farhome_words "$(_farhome_pids) $(_farhome_nodes) --json" ;;
        bring) case ${COMP_WORDS[COMP_CWORD - 1]} in -J | --job) _farhome_words "$(_farhome_jobs)" ;; *) _farhome_words "-J --job --json" ;; esac ;;
        policy) _farhome_words "explain --as --memory --json" ;;
        owner) _farhome_words "back away --json" ;;
        mfs) _farhome_words "status --json" ;;
        status | nodes | ledger) _farhome_words "--json" ;;
    esac
}

_farhome_mosd() {
    case ${COMP_WORDS[COMP_CWORD - 1]} in
        --config) mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}") ;;
        --run | --state) mapfile -t COMPREPLY < <(compgen -d -- "${COMP_WORDS[COMP_CWORD]}") ;;
        --log-level) _farhome_words "debug info warning error" ;;
        *) _farhome_words "--config --run --state --check --log-level --help" ;;
    esac
}

_farhome_mon() {
    case ${COMP_WORDS[COMP_CWORD - 1]} in
        -n) ;;
        *) _farhome_words "-n --once --json --web --allow-moves --help" ;;
    esac
}

complete -F _farhome_mosrun mosrun
complete -F _farhome_migrate migrate
complete -F _farhome_mosps mosps
complete -F _farhome_moscheck moscheck
complete -F _farhome_mosctl mosctl
complete -F _farhome_mosd mosd
complete -F _farhome_mon mon
